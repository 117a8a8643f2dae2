"""Experts of low rank: an adapter of the base with the expert's other tensors; merged, it is a dense expert."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.experts.factors import factors
from moerge.experts.low_rank import low_rank_expert, remove_low_rank
from moerge.files import file_sha256
from moerge.models.adapters import WEIGHTS
from moerge.models.expert_folder import DenseExpert, check_expert, dense_folder, file_digests
from moerge.models.families import EMBEDDING, HEAD
from moerge.models.low_rank import FIELD, low_rank_of
from moerge.models.stored import SINGLE
from moerge.progress import NoProgress
from moerge.scoring.perplexity import load
from moerge_proto.experts import Rank
from support.models import adapter, expert


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> DenseExpert:
    return DenseExpert("base", expert(tmp_path_factory.mktemp("base") / "base", seed=0, family="qwen2"))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> DenseExpert:
    folder = expert(tmp_path_factory.mktemp("own") / "own", seed=1, family="qwen2", tie_word_embeddings=True)
    return DenseExpert("law", folder)


def made(own: DenseExpert, base: DenseExpert, rank: Rank, home: Path) -> DenseExpert:
    return low_rank_expert(own, base, rank, home, NoProgress())


def test_only_the_mlps_change_and_the_expert_loads_with_stock_transformers(
    tmp_path: Path, own: DenseExpert, base: DenseExpert
) -> None:
    found = made(own, base, 3, tmp_path)
    assert found.whole == own
    for name in own.checkpoint.specs:
        tensor, before = found.checkpoint.tensor(name), own.checkpoint.tensor(name)
        if ".mlp." in name:
            start = base.checkpoint.tensor(name)
            part = factors(start, before, 3)
            assert part is not None
            assert tensor.equal((part.up.double() @ part.down.double() + start).float())
            assert not tensor.equal(before)
        else:
            assert tensor.equal(before)
    check_expert(found.folder, own.folder, "of low rank")
    dense = dense_folder(found.folder, tmp_path / "dense")
    assert file_digests(dense) == found.files
    stock = AutoModelForCausalLM.from_pretrained(dense)
    assert stock.config.tie_word_embeddings
    name = "model.layers.1.mlp.down_proj.weight"
    assert stock.get_parameter(name).equal(found.checkpoint.tensor(name))
    record = low_rank_of(found.folder, found.files)
    assert record is not None
    assert (record.rank, record.base, record.expert, str(record)) == (3, base.digest, own.digest, "base + rank-3 delta")
    assert (record.numbers, record.whole) == (9 * 3 * (32 + 48), 9 * 32 * 48)


def test_the_digest_covers_expert_base_and_rank_and_a_rerun_is_the_same(
    tmp_path: Path, own: DenseExpert, base: DenseExpert
) -> None:
    digests = [made(own, base, rank, tmp_path / str(rank)).digest for rank in (2, 3, "auto")]
    digests += [own.digest, made(base, own, 3, tmp_path / "swapped").digest]
    assert len(set(digests)) == len(digests)
    assert made(own, base, 3, tmp_path / "again").digest == digests[1]


def test_a_complete_folder_is_reused_and_another_rank_s_is_removed(
    tmp_path: Path, own: DenseExpert, base: DenseExpert
) -> None:
    first = made(own, base, 3, tmp_path).folder
    kept = {path.name: path.stat().st_mtime_ns for path in first.iterdir()}
    (tmp_path / f".{first.name}.part").mkdir()
    assert made(own, base, 3, tmp_path).folder == first
    assert {path.name: path.stat().st_mtime_ns for path in first.iterdir()} == kept
    second = made(own, base, "auto", tmp_path).folder
    assert second != first
    assert not first.exists()
    (tmp_path / "mine").mkdir()
    remove_low_rank(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_adapter_of_the_rank_loses_nothing_but_rounding(tmp_path: Path, base: DenseExpert) -> None:
    lora = DenseExpert("law", adapter(tmp_path / "lora", base.folder, seed=3))
    found = made(lora, base, 2, tmp_path)
    for name in lora.checkpoint.specs:
        torch.testing.assert_close(found.checkpoint.tensor(name), lora.checkpoint.tensor(name), rtol=1e-6, atol=1e-8)


def test_a_record_of_other_weights_does_not_count(tmp_path: Path, own: DenseExpert, base: DenseExpert) -> None:
    """Of an expert that was trained on, and saved with the fields of its config.json."""
    folder = dense_folder(made(own, base, 3, tmp_path).folder, tmp_path / "dense")
    tensors = load_file(folder / SINGLE)
    save_file({**tensors, "model.norm.weight": tensors["model.norm.weight"] * 2}, folder / SINGLE)
    assert FIELD in json.loads((folder / "config.json").read_text())
    assert low_rank_of(folder, {SINGLE: file_sha256(folder / SINGLE)}) is None


def stored(folder: Path, *, dtype: torch.dtype = torch.float32, start: Path | None = None, own: str = "") -> Path:
    """The folder in another number format; with `start`, only tensors with `own` in their names differ from its."""
    path, given = folder / SINGLE, {} if start is None else load_file(start / SINGLE)
    tensors = {name: tensor if own in name else given[name] for name, tensor in load_file(path).items()}
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, path, {"format": "pt"})
    return folder


FULL, HALF, TIED = torch.float32, torch.bfloat16, {"tie_word_embeddings": True}
PAIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any], torch.dtype, torch.dtype]] = {
    "biases": ("qwen2", {}, {}, FULL, FULL),
    "fused gates": ("phi3", {}, {}, FULL, FULL),
    "tied heads": ("llama", TIED, TIED, FULL, FULL),
    "a head of its own": ("llama", TIED, {}, FULL, FULL),
    "a base in bfloat16": ("qwen2", {}, {}, HALF, FULL),
    "an expert in bfloat16": ("qwen2", {}, TIED, FULL, HALF),
    "more tokens": ("llama", {}, {"tokens": ("<new>",), "vocab_size": 304}, FULL, FULL),
}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("pair", PAIRS)
def test_it_has_the_expert_s_other_tensors_and_formats_and_peft_reads_it(tmp_path: Path, pair: str) -> None:
    peft = pytest.importorskip("peft")
    family, start, further, dtype, other = PAIRS[pair]
    base = DenseExpert("base", stored(expert(tmp_path / "base", 1, family, **start), dtype=dtype))
    own = DenseExpert("law", stored(expert(tmp_path / "own", 2, family, **further), dtype=other))
    found = made(own, base, 3, tmp_path / "made")
    check_expert(found.folder, own.folder, "of low rank")
    for name, spec in own.checkpoint.specs.items():
        assert found.checkpoint.specs[name].dtype == spec.dtype
        assert ".mlp." in name or found.checkpoint.tensor(name).equal(own.checkpoint.tensor(name))
    if HEAD in found.checkpoint.specs and HEAD not in own.checkpoint.specs:
        assert found.checkpoint.tensor(HEAD).equal(own.checkpoint.tensor(EMBEDDING))
    model = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    if pair == "more tokens":
        model.resize_token_embeddings(304, mean_resizing=False)
    dense = load(dense_folder(found.folder, tmp_path / "dense"))
    ids = torch.arange(40)[None]
    with torch.no_grad():
        adapted = peft.PeftModel.from_pretrained(model, found.folder).eval()
        torch.testing.assert_close(adapted(ids).logits, dense(ids).logits, rtol=0, atol=2e-3 if other == HALF else 1e-6)


def test_tensors_of_the_base_are_not_stored(tmp_path: Path) -> None:
    base = DenseExpert("base", expert(tmp_path / "base", 1, "qwen2"))

    def of(own: str) -> tuple[DenseExpert, set[str]]:
        folder = stored(expert(tmp_path / own, 2, "qwen2"), start=base.folder, own=own)
        found = made(DenseExpert("law", folder), base, "auto", tmp_path / "made")
        return found, {name.removeprefix("base_model.model.") for name in load_file(found.folder / WEIGHTS)}

    down = "model.layers.1.mlp.down_proj"
    found, names = of(f"{down}.weight")
    assert names == {f"{down}.lora_A.weight", f"{down}.lora_B.weight"}
    assert str(low_rank_of(found.folder, found.files)) == "base + rank-0 to 19 delta"
    found, names = of("layers.0.self_attn.k_proj")
    assert names == {f"model.layers.0.self_attn.k_proj.{part}" for part in ("weight", "bias")}
    assert str(low_rank_of(found.folder, found.files)) == "base + rank-0 delta"


def test_without_a_smaller_matrix_or_a_difference_it_is_the_expert(tmp_path: Path, base: DenseExpert) -> None:
    own = DenseExpert("law", expert(tmp_path / "own", 1, "qwen2"))
    assert made(own, base, 30, tmp_path / "made") is own
    same = DenseExpert("law", base.folder)
    assert made(same, base, 3, tmp_path / "made") is same
    assert list((tmp_path / "made").iterdir()) == []


def test_a_base_may_be_an_adapter(tmp_path: Path, own: DenseExpert, base: DenseExpert) -> None:
    lora = DenseExpert("base", adapter(tmp_path / "lora", base.folder, seed=3))
    found = made(own, lora, 3, tmp_path)
    record = low_rank_of(found.folder, found.files)
    assert record is not None
    assert record.base == lora.digest


def test_a_base_of_another_shape_or_with_quantised_weights_is_refused(
    tmp_path: Path, own: DenseExpert, base: DenseExpert
) -> None:
    other = DenseExpert("base", expert(tmp_path / "other", seed=0, family="qwen2", intermediate_size=64))
    with pytest.raises(IncompatibleExpertError, match="intermediate_size"):
        made(own, other, 3, tmp_path)
    with pytest.raises((CheckpointError, IncompatibleExpertError)):
        made(own, DenseExpert("base", tmp_path / "nowhere"), 3, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
