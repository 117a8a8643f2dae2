"""Experts of low rank: the base's MLPs plus the nearest low-rank matrices of the differences, rounded once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.experts.low_rank import KEPT, Difference, low_rank_expert, reduced
from moerge.files import file_sha256
from moerge.models.expert_folder import DenseExpert, check_expert
from moerge.models.low_rank import FIELD, low_rank_of
from moerge.models.stored import SINGLE
from moerge.progress import NoProgress
from moerge_proto.experts import Rank
from support.models import adapter, expert

SHAPES = [(24, 40), (40, 24), (32, 32)]


def drawn(shape: tuple[int, int], seed: int) -> Tensor:
    """A matrix with singular values that fall off."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    made: Tensor = left * (values * 0.8 ** torch.arange(len(values))) @ right
    return made


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 5, 17])
def test_the_error_is_that_of_the_discarded_singular_values(shape: tuple[int, int], rank: int) -> None:
    """Eckart and Young: no matrix of this rank is nearer, in the Frobenius and in the spectral norm."""
    base, own = drawn(shape, 1), drawn(shape, 2)
    values = torch.linalg.svdvals(own - base)
    found = Difference.of(base, own)
    part = found.part(rank) if shape[0] <= shape[1] else found.part(rank).T
    error = own - base - part
    assert torch.linalg.matrix_rank(part) == rank
    assert float(error.pow(2).sum()) == pytest.approx(float(values[rank:].pow(2).sum()), rel=1e-10)
    assert float(torch.linalg.matrix_norm(error, 2)) == pytest.approx(float(values[rank]), rel=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_auto_is_the_smallest_rank_that_keeps_the_share(shape: tuple[int, int]) -> None:
    base, own = drawn(shape, 3), drawn(shape, 4)
    energy = torch.linalg.svdvals(own - base).pow(2)
    rank = Difference.of(base, own).rank("auto")
    assert energy[:rank].sum() >= KEPT * energy.sum() > energy[: rank - 1].sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_sum_is_rounded_once(shape: tuple[int, int], dtype: torch.dtype) -> None:
    base, own = drawn(shape, 5).to(dtype), drawn(shape, 6).to(dtype)
    left, values, right = torch.linalg.svd(own.double() - base.double(), full_matrices=False)
    exact = base.double() + left[:, :3] * values[:3] @ right[:3]
    made = reduced(base, own, 3).matrix
    assert made.dtype == dtype
    half = torch.finfo(dtype).eps / 2 * (1 + 1e-4)
    assert ((made.double() - exact).abs() <= half * exact.abs() + torch.finfo(dtype).tiny + 1e-12).all()


def test_a_rank_whose_factors_are_no_smaller_leaves_the_matrix_bit_for_bit() -> None:
    base, own = drawn((24, 40), 7).float(), drawn((24, 40), 8).float()
    assert reduced(base, own, 15).matrix.equal(own)  # 15 (24 + 40) = 24 40
    assert reduced(base, own, 15).rank is None
    assert reduced(base, own, 14).rank == 14
    assert not reduced(base, own, 14).matrix.equal(own)


@pytest.mark.parametrize("rank", ["auto", 4])
def test_an_unchanged_matrix_is_the_base_s_bit_for_bit(rank: Rank) -> None:
    base = drawn((24, 40), 9).float()
    assert reduced(base, base.clone(), rank).matrix.equal(base)


def test_it_runs_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, eigh = [], torch.linalg.eigh

    def counting(matrix: Tensor) -> Any:
        seen.append(torch.get_num_threads())
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", counting)
    torch.set_num_threads(2)
    try:
        reduced(drawn((24, 40), 1), drawn((24, 40), 2), 3)
    finally:
        torch.set_num_threads(1)
    assert seen == [1]


# --- experts
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
            assert tensor.equal(reduced(base.checkpoint.tensor(name), before, 3).matrix)
            assert not tensor.equal(before)
        else:
            assert tensor.equal(before)
    check_expert(found.folder, own.folder, "of low rank")
    stock = AutoModelForCausalLM.from_pretrained(found.folder)
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


def test_an_adapter_of_the_rank_loses_nothing_but_rounding(tmp_path: Path, base: DenseExpert) -> None:
    lora = DenseExpert("law", adapter(tmp_path / "lora", base.folder, seed=3))
    found = made(lora, base, 2, tmp_path)
    for name in lora.checkpoint.specs:
        torch.testing.assert_close(found.checkpoint.tensor(name), lora.checkpoint.tensor(name), rtol=1e-6, atol=1e-8)


def test_a_record_of_other_weights_does_not_count(tmp_path: Path, own: DenseExpert, base: DenseExpert) -> None:
    """Of an expert that was trained on, and saved with the fields of its config.json."""
    folder = made(own, base, 3, tmp_path).folder
    tensors = load_file(folder / SINGLE)
    save_file({**tensors, "model.norm.weight": tensors["model.norm.weight"] * 2}, folder / SINGLE)
    assert FIELD in json.loads((folder / "config.json").read_text())
    assert low_rank_of(folder, {SINGLE: file_sha256(folder / SINGLE)}) is None


def test_a_base_of_another_shape_or_with_quantised_weights_is_refused(
    tmp_path: Path, own: DenseExpert, base: DenseExpert
) -> None:
    other = DenseExpert("base", expert(tmp_path / "other", seed=0, family="qwen2", intermediate_size=64))
    with pytest.raises(IncompatibleExpertError, match="intermediate_size"):
        made(own, other, 3, tmp_path)
    with pytest.raises((CheckpointError, IncompatibleExpertError)):
        made(own, DenseExpert("base", tmp_path / "nowhere"), 3, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
