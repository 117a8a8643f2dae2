"""The factors of a difference: those of the nearest matrix of their rank, rounded once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from moerge.experts.factors import KEPT, Difference, factors

SHAPES = [(24, 40), (40, 24), (32, 32)]


def drawn(shape: tuple[int, int], seed: int) -> Tensor:
    """A matrix with singular values that fall off."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    made: Tensor = left * (values * 0.8 ** torch.arange(len(values))) @ right
    return made


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 5, 12])
def test_the_error_is_that_of_the_discarded_singular_values(shape: tuple[int, int], rank: int) -> None:
    """Eckart and Young: no matrix of this rank is nearer, in the Frobenius and in the spectral norm."""
    base, own = drawn(shape, 1), drawn(shape, 2)
    values = torch.linalg.svdvals(own - base)
    found = factors(base, own, rank)
    assert found is not None
    part = found.up @ found.down
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
def test_factors_are_rounded_once_to_the_matrix_s_format(shape: tuple[int, int], dtype: torch.dtype) -> None:
    base, own = drawn(shape, 5).to(dtype), drawn(shape, 6).to(dtype)
    left, values, right = torch.linalg.svd(own.double() - base.double(), full_matrices=False)
    found = factors(base, own, 3)
    assert found is not None
    assert (found.up.dtype, found.down.dtype) == (dtype, dtype)
    exact = left[:, :3] * values[:3] @ right[:3]
    bound = torch.finfo(dtype).eps * (1 + 1e-2) * found.up.double().abs() @ found.down.double().abs()
    assert ((found.up.double() @ found.down.double() - exact).abs() <= bound + 1e-7).all()


def test_a_rank_whose_factors_are_no_smaller_leaves_the_matrix() -> None:
    base, own = drawn((24, 40), 7).float(), drawn((24, 40), 8).float()
    assert factors(base, own, 15) is None  # 15 (24 + 40) = 24 40
    found = factors(base, own, 14)
    assert found is not None
    assert (found.up.shape, found.down.shape, found.rank) == ((24, 14), (14, 40), 14)


def test_it_runs_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, eigh = [], torch.linalg.eigh

    def counting(matrix: Tensor) -> Any:
        seen.append(torch.get_num_threads())
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", counting)
    torch.set_num_threads(2)
    try:
        factors(drawn((24, 40), 1), drawn((24, 40), 2), 3)
    finally:
        torch.set_num_threads(1)
    assert seen == [1]
