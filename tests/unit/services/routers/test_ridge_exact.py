"""The solve against exact arithmetic, up to the condition that its docstring promises, and on any number of threads."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.statistics import ridge_router

Float64 = NDArray[np.float64]
QUARTER = Fraction(1, 4)  # a lambda that is exact in binary


def features(spread: float, hidden: int = 9, rows: int = 60) -> Float64:
    """Integers whose singular values go from 1e7 down to 1e7 / spread, so that their gram has a condition of spread^2.

    Entries stay below 2**24 and sums of 60 products below 2**53, so the gram is exact in float64.
    """
    generator = np.random.default_rng(0)
    left, _ = np.linalg.qr(generator.standard_normal((rows, hidden)))
    right, _ = np.linalg.qr(generator.standard_normal((hidden, hidden)))
    x: Float64 = np.rint(left * np.logspace(7, 7 - np.log10(spread), hidden) @ right.T)
    return x


def exact_ridge(gram: Float64, cross: Float64) -> Float64:
    """(A + I/4)^-1 b by elimination over the rationals, columns normalised at the end."""
    size = len(gram)
    rows = [[Fraction(value) for value in (*left, *right)] for left, right in zip(gram, cross, strict=True)]
    for pivot in range(size):
        rows[pivot][pivot] += QUARTER
    for pivot in range(size):
        rows[pivot] = [value / rows[pivot][pivot] for value in rows[pivot]]
        for other in range(size):
            if other != pivot:
                share = rows[other][pivot]
                rows[other] = [a - share * b for a, b in zip(rows[other], rows[pivot], strict=True)]
    solution = np.array([[float(value) for value in row[size:]] for row in rows])
    normalised: Float64 = solution / np.linalg.norm(solution, axis=0)
    return normalised


@pytest.mark.parametrize("spread", [1e1, 1e3, 1e5, 1e6, 3e6])
def test_solve_is_exact_to_rounding_up_to_condition_1e13(spread: float) -> None:
    """At the last one Cholesky alone is off by 2e-5."""
    x = features(spread)
    y = np.eye(2)[np.arange(len(x)) % 2]
    gram, cross = x.T @ x, x.T @ y
    assert np.abs(gram).max() < 2**53
    assert np.linalg.cond(gram) == pytest.approx(spread**2, rel=0.5)
    router = ridge_router(torch.from_numpy(gram), torch.from_numpy(cross), float(QUARTER)).numpy()
    np.testing.assert_allclose(router, exact_ridge(gram, cross), rtol=0, atol=1e-12)


def test_columns_of_very_different_sizes_are_solved_to_rounding() -> None:
    x = np.rint(np.random.default_rng(1).integers(-9, 10, (60, 9)) * np.logspace(0, 4, 9))
    y = np.eye(2)[np.arange(60) % 2]
    gram, cross = x.T @ x, x.T @ y
    router = ridge_router(torch.from_numpy(gram), torch.from_numpy(cross), float(QUARTER)).numpy()
    expected = exact_ridge(gram, cross)
    np.testing.assert_allclose(router, expected, rtol=1e-12)  # of every entry, however small


def test_law_3_two_threads_give_the_same_bits_as_one() -> None:
    """At this size torch's own Cholesky has other bits on two threads; fewer rows than columns let them be seen."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(700, 768, generator=generator, dtype=torch.float64)
    gram, cross = x.T @ x, x[:5].T.contiguous()
    before = torch.get_num_threads()
    try:
        routers = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            routers.append(ridge_router(gram, cross, 0.01))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*routers)
