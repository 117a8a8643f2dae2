"""Experts added to a merged version: its parts are reused, and it needs neither other experts nor their texts."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.files import work_folder
from moerge.merging import dry_run
from moerge.merging.arguments import sources, version
from moerge.merging.kept_statistics import kept
from moerge.merging.local_lineages import local_version
from moerge.merging.merge import MergeSettings, merge
from moerge.merging.recipe import Recipe
from moerge.merging.report import Report
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.registry import FAMILIES
from moerge.statistics.contribution import Computing
from moerge.versions.version_plan import plan_version
from moerge_proto.recipes import PAPER, RECOMMENDED
from moerge_proto.statistics_file import TextBefore
from moerge_proto.version_files import FUSED_FILE, HEAD_FILE
from support.merging import SMALL, files, source
from support.models import GEMMA4_SMALL, adapter, expert, texts
from support.processes import run_command

SETTINGS = MergeSettings(scored_tokens=500)
KEPT = replace(SETTINGS, keep_statistics=True)


class _CutError(Exception):
    """Ends a run anywhere."""


class Watched:
    """Progress that ends the run at work whose title begins so."""

    def __init__(self, end: str = "nothing") -> None:
        self.end, self.titles = end, list[str]()

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator["Watched"]:
        self.titles.append(title)
        if title.startswith(self.end):
            raise _CutError
        yield self

    def advance(self, n: int) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version `merged` of law and art, whose experts are gone, and two others with their texts."""
    root = tmp_path_factory.mktemp("adding")
    for seed, domain in enumerate(("law", "art", "code", "bio"), 1):
        expert(root / domain, seed, **SMALL)
        texts(root / f"{domain}.jsonl", seed, documents=90)
    merge([source(root, "law"), source(root, "art")], root / "merged", KEPT)
    for domain in ("law", "art"):
        shutil.move(root / domain, root / f"{domain}-elsewhere")
    return root


def added(folder: Path, out: Path, *domains: str, to: Path | None = None, **how: Any) -> Report:
    return merge([source(folder, domain) for domain in domains], out, version=kept(to or folder / "merged"), **how)


def weights(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in files(folder).items() if name not in ("README.md", "merge.yaml")}


def test_a_version_that_has_grown_twice_is_that_of_both_at_once(folder: Path, tmp_path: Path) -> None:
    added(folder, tmp_path / "three", "code", settings=KEPT)
    added(folder, tmp_path / "four", "bio", to=tmp_path / "three", settings=SETTINGS)
    added(folder, tmp_path / "both", "code", "bio", settings=SETTINGS)
    assert weights(tmp_path / "four") == weights(tmp_path / "both")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both", "four", "three", "three.work"]
    for name in ("model-body.safetensors", "model-expert-00001.safetensors"):
        assert (tmp_path / "four" / name).samefile(folder / "merged" / name)
    assert not (tmp_path / "four" / HEAD_FILE).samefile(folder / "merged" / HEAD_FILE)
    mine = work_folder(tmp_path / "three") / "body" / "body.safetensors"
    assert mine.samefile(work_folder(folder / "merged") / "body" / "body.safetensors")


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("granite", {**SMALL, "residual_multiplier": 0.5, "embedding_multiplier": 2.0}),
        ("gemma4_text", GEMMA4_SMALL),
    ],
)
def test_fused_experts_are_written_anew_and_the_price_is_told(tmp_path: Path, family: str, own: dict[str, Any]) -> None:
    for seed, domain in enumerate(("law", "art", "base"), 1):
        expert(tmp_path / domain, seed, family, **own)
    adapter(tmp_path / "code", tmp_path / "base", 3)
    for seed, domain in enumerate(("law", "art", "code"), 1):
        texts(tmp_path / f"{domain}.jsonl", seed, documents=90)
    recipe = RECOMMENDED.model_copy(update={"fit": FAMILIES[family].is_fittable})
    settings = replace(KEPT, recipe=recipe)
    merge([source(tmp_path, "law"), source(tmp_path, "art")], tmp_path / "merged", settings)
    shutil.rmtree(tmp_path / "law")
    old = (tmp_path / "merged" / FUSED_FILE).stat().st_size
    costs = dry_run.merge([source(tmp_path, "code")], tmp_path / "three", settings, version=kept(tmp_path / "merged"))
    assert any("each addition writes all MLPs anew" in line for line in costs.notes)
    assert costs.disk > old + (tmp_path / "base" / "model.safetensors").stat().st_size
    added(tmp_path, tmp_path / "three", "code", settings=replace(SETTINGS, recipe=recipe))
    two, three = (load_file(tmp_path / name / FUSED_FILE) for name in ("merged", "three"))
    assert all(torch.equal(three[name][:2], tensor) and len(three[name]) == 3 for name, tensor in two.items())
    body = "model-body.safetensors"
    assert (tmp_path / "three" / body).samefile(tmp_path / "merged" / body)
    assert "in one file, which each version with other experts has anew" in (tmp_path / "three/README.md").read_text()


def test_without_links_the_bytes_are_the_same(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added(folder, tmp_path / "linked", "code", settings=SETTINGS)

    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "link", refuse)
    added(folder, tmp_path / "copied", "code", settings=KEPT)
    assert files(tmp_path / "copied") == files(tmp_path / "linked")
    assert kept(tmp_path / "copied").lineage.domains == ["law", "art", "code"]
    assert not (tmp_path / "copied" / "model-body.safetensors").samefile(folder / "merged" / "model-body.safetensors")


def test_only_the_new_domain_is_scored_and_the_cost_is_told(folder: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    report = added(folder, tmp_path / "out", "code", settings=SETTINGS, say=messages.append)
    assert [score is None for score in report.scores] == [True, True, False]
    assert [counts.tokens > 0 for counts in report.counts] == [True, True, True]
    assert any("not law, art; `moerge table version`" in line for line in messages)
    assert report.warnings == []
    card = (tmp_path / "out" / "README.md").read_text()
    assert "No scores of: law, art." in card
    assert "merged from 2 experts" in card
    assert "fitted to the body: code; all others unchanged" in card


def test_a_newcomer_that_is_not_fitted_is_told_its_cost(folder: Path, tmp_path: Path) -> None:
    report = added(folder, tmp_path / "out", "code", settings=replace(SETTINGS, fit=False))
    assert [line.partition(";")[0] for line in report.warnings] == ["not in the body, and not fitted to it: code"]
    assert "the experts' own, unchanged" in (tmp_path / "out" / "README.md").read_text()


def test_a_fit_to_a_kept_seed_s_body_needs_that_seed(folder: Path, tmp_path: Path) -> None:
    seed, other = (DenseExpert("base", expert(tmp_path / str(number), number, **SMALL)) for number in (5, 6))
    under = replace(KEPT, recipe=RECOMMENDED.model_copy(update={"body": "seed"}), base=seed)
    merge([source(folder, "code"), source(folder, "bio")], tmp_path / "two", under)
    expert(tmp_path / "art", 7, **SMALL)
    experts = [source(tmp_path, "art", folder / "art.jsonl")]
    made = kept(tmp_path / "two")
    altered = DenseExpert("base", shutil.copytree(seed.folder, tmp_path / "altered"))
    tensors = load_file(altered.folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] *= 2  # the same body
    save_file(tensors, altered.folder / "model.safetensors")
    for base, problem in ((None, "needs the seed"), (other, "is not the seed"), (altered, "is not the seed")):
        with pytest.raises(MoergeError, match=problem):
            merge(experts, tmp_path / "three", replace(SETTINGS, base=base), version=made)
    report = merge(experts, tmp_path / "three", replace(SETTINGS, base=seed), version=made)
    assert report.warnings == []
    assert "fitted to the body: code, bio, art" in (tmp_path / "three" / "README.md").read_text()


def test_the_head_is_that_of_all_experts_under_the_kept_body(folder: Path, tmp_path: Path) -> None:
    """The kept experts' files and contributions stay, as they would in a version of all three under that body."""
    added(folder, tmp_path / "out", "code", settings=replace(KEPT, fit=False))
    start, grown = kept(folder / "merged"), kept(tmp_path / "out")
    assert grown.lineage.body == start.lineage.body
    assert set(start.lineage.contributions) < set(grown.lineage.contributions)
    assert grown.lineage.head.contributions[:2] == start.lineage.head.contributions
    names = {"law": "law-elsewhere", "art": "art-elsewhere", "code": "code"}
    experts = [DenseExpert(domain, folder / name) for domain, name in names.items()]
    made = local_version(experts, start.body, [*grown.contributions.values()], head_contributions=grown.heads)
    assert made[0] == grown.lineage
    head = next(file for file in plan_version(*made).files if file.name == HEAD_FILE)
    with (tmp_path / "head").open("wb") as out:
        head.write(out)
    assert (tmp_path / "head").read_bytes() == (tmp_path / "out" / HEAD_FILE).read_bytes()
    assert (tmp_path / "head").read_bytes() != (folder / "merged" / HEAD_FILE).read_bytes()


def test_a_cut_run_goes_on(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(_CutError):
        added(
            folder,
            tmp_path / "out",
            "code",
            settings=replace(SETTINGS, computing=Computing(progress=Watched("writing"))),
        )
    assert not (tmp_path / "out").exists()
    progress = Watched()
    added(folder, tmp_path / "out", "code", settings=replace(SETTINGS, computing=Computing(progress=progress)))
    assert "router statistics of code" not in progress.titles
    added(folder, tmp_path / "whole", "code", settings=SETTINGS)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


# --- refusals, before anything is computed
def test_a_domain_or_an_expert_of_the_version_is_refused(folder: Path, tmp_path: Path) -> None:
    law, version, out = source(folder, "law-elsewhere", folder / "law.jsonl"), kept(folder / "merged"), tmp_path / "out"
    with pytest.raises(MoergeError, match="'law' already"):
        merge([replace(law, expert=replace(law.expert, domain="law"))], out, version=version)
    with pytest.raises(MoergeError, match="'new' is the expert of 'law'"):
        merge([replace(law, expert=replace(law.expert, domain="new"))], out, version=version)
    with pytest.raises(MoergeError, match="is the version to add experts to"):
        added(folder, folder / "merged", "code")
    assert list(tmp_path.iterdir()) == []


def test_incompatible_expert_is_refused_with_differing_field(folder: Path, tmp_path: Path) -> None:
    expert(tmp_path / "odd", 2, **{**SMALL, "rms_norm_eps": 1e-3})
    odd = replace(source(folder, "code"), expert=DenseExpert("odd", tmp_path / "odd"))
    with pytest.raises(IncompatibleExpertError, match=r"'odd' differs .* rms_norm_eps is 0\.001"):
        merge([odd], tmp_path / "out", version=kept(folder / "merged"))
    assert [path.name for path in tmp_path.iterdir()] == ["odd"]


@pytest.mark.parametrize(
    ("gone", "problem"),
    [
        ("merged.work", "statistics were not kept"),
        ("merged.work/kept.json", "statistics were not kept"),
        ("merged.work/router-*", "of another merge"),
        ("merged.work/head-*", "of another merge"),
        ("merged/moerge.json", "expected a folder of moerge merge"),
    ],
)
def test_a_folder_without_its_statistics_is_refused(folder: Path, tmp_path: Path, gone: str, problem: str) -> None:
    for name in ("merged", "merged.work"):
        shutil.copytree(folder / name, tmp_path / name)
    for path in tmp_path.glob(gone):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(MoergeError, match=problem) as raised:
        kept(tmp_path / "merged")
    assert raised.value.where == str(tmp_path / "merged")


def test_statistics_of_another_merge_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "merged", tmp_path / "merged")
    pair = [source(folder, "code"), source(folder, "bio")]
    merge(pair, tmp_path / "other", replace(KEPT, recipe=PAPER, scored_tokens=0))
    (tmp_path / "other.work").rename(tmp_path / "merged.work")
    with pytest.raises(MoergeError, match="of another merge"):
        kept(tmp_path / "merged")


# --- options
@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"recipe": "dume"}, "`recipe`"),
        ({"body": "average"}, "`body`"),
        ({"head": "average"}, "`head`"),
        ({"base": "seed"}, "`base`"),
        ({"weights": {"law": 2.0}}, "`weights`"),
        ({"ridge_lambda": 0.5}, "`ridge_lambda`"),
        ({"top_k": 2}, "`top_k`"),
        ({"context": 256}, "`context`"),
        ({"precision": "bfloat16"}, "`precision`"),
        ({"lambda_scale": "absolute"}, "`lambda_scale`"),
        ({"before": True}, "`before`"),
    ],
)
def test_an_option_that_contradicts_the_version_is_refused(folder: Path, given: dict[str, Any], option: str) -> None:
    with pytest.raises(MoergeError) as raised:
        version(Recipe(from_=str(folder / "merged"), add={"code": "code"}, **given))
    assert raised.value.where == option


def test_text_before_is_off_unless_an_option_asks_for_it_and_fits_a_short_context() -> None:
    assert Recipe().followed.before is Recipe(before=False).followed.before is None
    assert Recipe(before=True).followed.before == TextBefore()
    short = Recipe(before=True, context=65)
    settings = MergeSettings(recipe=short.followed, statistics=short.statistics)
    assert settings.router_statistics.before == TextBefore(tokens=32, piece=32)


def test_options_that_agree_with_the_version_are_taken(folder: Path) -> None:
    same = Recipe(
        recipe="recommended",
        body="regmean",
        head="regmean",
        ridge_lambda=0.001,
        lambda_scale="relative",
        top_k=1,
        fit=False,
        context=512,
        precision="float32",
        before=False,
    )
    added = same.model_copy(update={"from_": str(folder / "merged"), "add": {"code": "code"}})
    assert version(added) is not None
    assert version(same.model_copy(update={"expert": {"law": "law"}})) is None


@pytest.mark.parametrize(
    ("start", "add", "experts", "where"),
    [
        ("merged", {}, {}, "`add`"),
        ("", {"code": "code"}, {}, "`from_`"),
        ("merged", {"code": "code"}, {"law": "law"}, "`expert`"),
    ],
)
def test_options_that_need_or_exclude_each_other(
    folder: Path, start: str, add: dict[str, str], experts: dict[str, str], where: str
) -> None:
    with pytest.raises(MoergeError) as raised:
        version(Recipe(from_=str(folder / start) if start else None, add=add, expert=experts))
    assert raised.value.where == where


def test_texts_are_of_new_domains_only(folder: Path) -> None:
    given: dict[str, Any] = {"from_": "merged", "add": {"code": str(folder / "code")}}
    texts = {name: [f"{folder}/{name}.jsonl"] for name in ("code", "law")}
    [new] = sources(Recipe(**given, text={"code": texts["code"]}), print)
    assert new.expert.domain == "code"
    with pytest.raises(MoergeError, match="no expert of law"):
        sources(Recipe(**given, text=texts), print)


def test_the_command_adds_an_expert(folder: Path, tmp_path: Path) -> None:
    given = [f"--add=code={folder / 'code'}", f"--text=code={folder / 'code.jsonl'}", f"--from={folder / 'merged'}"]
    (tmp_path / "recipe.yaml").write_text("scored_tokens: 500\n")
    done = run_command("merge", *given, f"--config={tmp_path}/recipe.yaml", f"--out={tmp_path / 'out'}", "--json")
    assert done.returncode == 0, done.stderr
    assert [load["domain"] for load in json.loads(done.stdout)["domains"]] == ["law", "art", "code"]
    assert "only new domains are scored, not law, art" in done.stderr
    added(folder, tmp_path / "same", "code", settings=SETTINGS)
    assert weights(tmp_path / "out") == weights(tmp_path / "same")
