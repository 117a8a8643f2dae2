"""Settings in which experts of a merge may differ from the first or the base, and what is said of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from moerge.errors import IncompatibleExpertError
from moerge.merging import dry_run
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.models.expert_folder import DenseExpert
from moerge_proto.recipes import RECOMMENDED, VersionRecipe
from support.merging import SMALL, source
from support.models import VOCAB, expert, seed_model, texts
from support.versions import loaded, logits

SEED = VersionRecipe(**{**RECOMMENDED.model_dump(), "body": "seed", "head": "regmean"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("sources")
    seed_model(result / "seed", **SMALL)
    for number, domain in enumerate(("law", "art")):
        expert(result / domain, number, **SMALL)
        texts(result / f"{domain}.jsonl", number, documents=60)
    return result


@pytest.fixture
def config(folder: Path) -> Iterator[Path]:
    """The config.json of an expert, which is restored."""
    path = folder / "art" / "config.json"
    before = path.read_bytes()
    yield path
    path.write_bytes(before)


def changed(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def sources(folder: Path) -> list[Source]:
    return [source(folder, "law"), source(folder, "art")]


def said(folder: Path, out: Path, settings: MergeSettings | None = None) -> list[str]:
    lines = list[str]()
    dry_run.merge(sources(folder), out, settings, lines.append)
    return lines


def test_ids_of_a_trainer_are_the_first_expert_s_and_told(folder: Path, tmp_path: Path, config: Path) -> None:
    first = json.loads((folder / "law" / "config.json").read_text())
    changed(config, bos_token_id=None, pad_token_id=7, max_position_embeddings=first["max_position_embeddings"] // 2)
    lines = list[str]()
    merge(sources(folder), tmp_path / "out", MergeSettings(scored_tokens=0), lines.append)
    [line] = [line for line in lines if "expert of 'art'" in line]
    assert "versions have bos_token_id, pad_token_id of the first expert; no logit depends on them" in line
    assert "versions have at most 128 tokens" in line
    published = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {name: published[name] for name in ("bos_token_id", "pad_token_id", "max_position_embeddings")} == {
        "bos_token_id": 256, "pad_token_id": 258, "max_position_embeddings": 128,
    }  # fmt: skip


def test_under_the_seed_s_body_they_are_the_seed_s(folder: Path, tmp_path: Path, config: Path) -> None:
    changed(config, eos_token_id=[7, 257], max_position_embeddings=512)
    seed = MergeSettings(recipe=SEED, base=DenseExpert("base", folder / "seed"))
    [line] = [line for line in said(folder, tmp_path / "out", seed) if "expert of 'art'" in line]
    assert "versions have eos_token_id of the seed" in line
    assert "at most 256 tokens" in line
    changed(config, rms_norm_eps=1e-3)
    with pytest.raises(IncompatibleExpertError, match=r"differs from the seed .*: rms_norm_eps is 0.001"):
        said(folder, tmp_path / "out", seed)


def test_a_longer_vocabulary_is_merged_and_one_without_the_tokens_refused_under_a_seed(tmp_path: Path) -> None:
    """As padded to a multiple for a GPU."""
    for number, (domain, rows) in enumerate((("law", VOCAB), ("art", VOCAB + 20))):
        expert(tmp_path / domain, number, **SMALL, vocab_size=rows)
        texts(tmp_path / f"{domain}.jsonl", number, documents=60)
    merge(sources(tmp_path), tmp_path / "out", MergeSettings(scored_tokens=0))
    assert logits(loaded(tmp_path / "out")).shape[-1] == VOCAB + 20
    seed = MergeSettings(recipe=SEED, base=DenseExpert("base", tmp_path / "law"))
    with pytest.raises(IncompatibleExpertError, match=r"320 tokens, the seed .* 300") as caught:
        said(tmp_path, tmp_path / "other", seed)
    assert "coordinator.toml" not in caught.value.todo


def test_experts_of_two_seeds_are_warned_of(folder: Path, tmp_path: Path) -> None:
    assert not [line for line in said(folder, tmp_path / "out") if "warning" in line]
    torch.manual_seed(77)
    stranger = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "art"))
    for path in (folder / "art").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    stranger.save_pretrained(tmp_path)
    other = source(folder, "art")
    lines = list[str]()
    strange = Source(DenseExpert("art", tmp_path), other.corpus)
    dry_run.merge([source(folder, "law"), strange], tmp_path / "out", None, lines.append)
    [line] = [line for line in lines if line.startswith("warning")]
    assert f"{tmp_path} was trained from another model than {folder / 'law'}" in line
