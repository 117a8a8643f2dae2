"""Merges of experts that keep the base's body: nothing but routers is computed."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.merging import dry_run
from moerge.merging.merge import MergeSettings, Source, merge, settings_of
from moerge.models.dense import expert_model
from moerge.models.expert_folder import DenseExpert
from moerge.scoring.routers import forced
from moerge_proto.recipes import RECOMMENDED
from support.merging import SMALL, corpus_of
from support.models import expert, keeping_expert, seed_model, texts
from support.versions import loaded, logits

AUTOMATIC = MergeSettings(scored_tokens=0, automatic=True, automatic_head=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seed with a tied head, three experts that keep it, and one that doesn't."""
    result = tmp_path_factory.mktemp("kept")
    seed = seed_model(result / "seed", tie_word_embeddings=True, **SMALL)
    for number, domain in enumerate(("law", "art", "code", "free")):
        if domain == "free":
            expert(result / domain, number, tie_word_embeddings=True, **SMALL)
        else:
            keeping_expert(result / domain, seed, number)
        texts(result / f"{domain}.jsonl", number, documents=60)
    return result


def sources(folder: Path, *domains: str) -> list[Source]:
    return [Source(DenseExpert(domain, folder / domain), corpus_of(folder, domain)) for domain in domains]


def settings(folder: Path, **more: object) -> MergeSettings:
    return replace(AUTOMATIC, base=DenseExpert("base", folder / "seed"), **more)  # type: ignore[arg-type]


def run(*words: object) -> None:
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == 0, result.exception


def passes(given: Sequence[Source], of: MergeSettings, out: Path) -> set[str]:
    """The kinds of passes that a merge would make."""
    return {cost.kind for cost in dry_run.merge(given, out, of).passes}


def test_a_version_of_kept_bodies_has_the_seed_s_body_and_head_and_the_experts_own_mlps(
    folder: Path, tmp_path: Path
) -> None:
    given, said = sources(folder, "law", "art"), list[str]()
    merge(given, tmp_path / "out", settings(folder), said.append)
    assert (
        f"every expert keeps the body and head of {folder / 'seed'}: the version has it, and no MLPs are fitted" in said
    )
    version = loaded(tmp_path / "out")
    assert version.config.tie_word_embeddings
    for slot, source in enumerate(given):
        with forced(version, slot):
            torch.testing.assert_close(logits(version), logits(expert_model(source.expert)), atol=1e-5, rtol=0)
    assert passes(given, settings(folder), tmp_path / "dry") == {"router"}


def test_the_average_of_heads_that_are_the_seed_s_is_told_as_the_embedding_that_it_is(
    folder: Path, tmp_path: Path
) -> None:
    recipe = RECOMMENDED.model_copy(update={"body": "seed", "head": "average", "fit": True})
    merge(sources(folder, "law", "art"), tmp_path / "out", settings(folder, automatic_head=False, recipe=recipe))
    assert "| mean of the experts (DUME); the embedding |" in (tmp_path / "out" / "README.md").read_text()
    weights = loaded(tmp_path / "out").state_dict()
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_one_that_doesn_t_keep_it_is_fitted_beside_others_that_stay(folder: Path, tmp_path: Path) -> None:
    given, said = sources(folder, "law", "free"), list[str]()
    mixed = settings(folder, recipe=AUTOMATIC.recipe.model_copy(update={"body": "seed"}), automatic=False)
    found = settings_of(given, tmp_path / "out", mixed, None)
    assert (found.recipe.body, found.recipe.head, found.recipe.fit, [*found.unfitted]) == (
        "seed",
        "regmean",
        True,
        ["law"],
    )
    merge(given, tmp_path / "out", mixed, said.append)
    assert "law: keeps the seed's body and head; its MLPs stay as they are" in said
    assert any(line.startswith("free: has another body than the seed") for line in said)
    mlp = load_file(tmp_path / "out" / "model-expert-00000.safetensors")
    own = load_file(folder / "law" / "model.safetensors")
    assert mlp["model.layers.0.block_sparse_moe.experts.0.w2.weight"].equal(own["model.layers.0.mlp.down_proj.weight"])
    card = (tmp_path / "out" / "README.md").read_text()
    assert "fitted to the body: free" in card


def test_without_the_seed_s_body_for_all_the_recommended_one_stays(folder: Path, tmp_path: Path) -> None:
    found = settings_of(sources(folder, "law", "free"), tmp_path / "out", settings(folder), None)
    assert (found.recipe.body, found.recipe.head, found.recipe.fit) == ("regmean", "regmean", False)


def test_a_fit_on_demand_fits_all(folder: Path, tmp_path: Path) -> None:
    found = settings_of(sources(folder, "law", "art"), tmp_path / "out", settings(folder, fit=True), None)
    assert (found.recipe.body, found.recipe.head, found.recipe.fit, found.unfitted) == ("seed", "seed", True, ())


def test_a_newcomer_that_keeps_the_body_joins_without_a_fit(folder: Path, tmp_path: Path) -> None:
    """And the version is that of a merge of all."""
    kept = settings(folder, keep_statistics=True)
    merge(sources(folder, "law", "art"), tmp_path / "two", kept)
    code = ["--expert", f"code={folder / 'code'}", "--text", f"code={folder / 'code.jsonl'}"]
    both = [
        *(item for domain in ("law", "art") for item in ("--expert", f"{domain}={folder / domain}")),
        *(item for domain in ("law", "art") for item in ("--text", f"{domain}={folder / f'{domain}.jsonl'}")),
    ]
    (tmp_path / "recipe.yaml").write_text("scored_tokens: 0\n")
    base = ["--base", str(folder / "seed"), "--config", str(tmp_path / "recipe.yaml")]
    add = ["--add", code[1], *code[2:], "--from", str(tmp_path / "two")]
    run("merge", *add, *base, "--out", str(tmp_path / "added"))
    run("merge", *both, *code, *base, "--out", str(tmp_path / "whole"))
    names = {path.name for path in (tmp_path / "whole").iterdir()} - {"merge.yaml", "README.md"}
    assert names
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "added" / name).read_bytes(), name
    recipe = (tmp_path / "whole" / "merge.yaml").read_text()
    assert "body: seed" in recipe
    assert "fit: false" in recipe
    record = json.loads((tmp_path / "whole" / "moerge.json").read_text())
    assert record["head"] == {"method": "seed", "contributions": []}


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma4_unified_text", "nemotron_h"])
def test_law_6_an_expert_that_keeps_the_body_is_the_dense_expert(tmp_path: Path, family: str) -> None:
    seed = expert(tmp_path / "seed", 9, family)
    for number, domain in enumerate(("law", "art")):
        keeping_expert(tmp_path / domain, seed, number)
        texts(tmp_path / f"{domain}.jsonl", number, documents=60)
    given = sources(tmp_path, "law", "art")
    merge(given, tmp_path / "out", settings(tmp_path))
    version = loaded(tmp_path / "out")
    for slot, source in enumerate(given):
        with forced(version, slot):
            torch.testing.assert_close(logits(version), logits(expert_model(source.expert)), atol=1e-4, rtol=0)
