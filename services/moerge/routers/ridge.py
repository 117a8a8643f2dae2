"""The ridge solve: W = (A + lambda I)^-1 b, columns normalised (DUME eq. 6)."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from moerge.errors import SolveError

SOLVER = f"ridge-1 torch-{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
"""Names the build whose bits a version has: method, library, instruction set."""

_REFINEMENTS = 3
_threads = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch on one thread, because another number gives other bits."""
    with _threads:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def solve(gram: Tensor, cross: Tensor, ridge_lambda: float) -> Tensor:
    """The router of one layer.

    The system is factorised once by Cholesky and its solution refined with residuals of about twice float64's
    precision, so that the error stays at rounding level up to a condition of about 1e14.

    Args:
        gram: [H, H] float64, symmetric, sum of x^T x.
        cross: [H, D] float64, one column per domain.
        ridge_lambda: Tikhonov regulariser, absolute.

    Returns:
        [H, D] float64; every column has norm 1.

    Raises:
        SolveError: the matrix can't be factorised, or a column of `cross` is zero.
    """
    with one_thread():
        matrix = gram + ridge_lambda * torch.eye(len(gram), dtype=torch.float64)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed):
            diagonal = matrix.diagonal()
            raise SolveError(
                f"A + lambda I is not positive definite at row {int(failed)}; its diagonal spans "
                f"{float(diagonal.min()):.3g} to {float(diagonal.max()):.3g}",
                todo=f"raise lambda from {ridge_lambda:g}, or send more tokens",
            )
        solution = torch.cholesky_solve(cross, factor)
        for _ in range(_REFINEMENTS):
            solution = solution + torch.cholesky_solve(_residual(matrix, solution, cross), factor)
        norms: Tensor = torch.linalg.vector_norm(solution, dim=0)
        if not bool((norms > 0).all()):
            raise SolveError(
                f"column {int((norms <= 0).nonzero()[0])} has no direction: its domain's features sum to zero",
                todo="the domain needs a contribution with tokens",
            )
        return solution / norms


def _residual(matrix: Tensor, solution: Tensor, cross: Tensor) -> Tensor:
    """cross - matrix @ solution, with the product's leading parts computed exactly.

    Both factors are cut into slices of so few bits that products of slices add up without rounding (Ozaki et al.,
    2012). The largest are subtracted first, where they cancel.
    """
    bits = (53 - len(matrix).bit_length()) // 2
    left, right = _slices(matrix, bits, dim=1), _slices(solution, bits, dim=0)
    residual = cross
    for order in range(len(left) + len(right) - 1):
        for index in range(max(0, order - len(right) + 1), min(order + 1, len(left))):
            residual = residual - left[index] @ right[order - index]
    return residual


def _slices(values: Tensor, bits: int, dim: int) -> list[Tensor]:
    """values = sum of three slices (and a rest below rounding); along `dim` each slice's grid is common."""
    slices, rest = [], values
    for _ in range(3):
        top = rest.abs().amax(dim=dim, keepdim=True)
        grid = torch.exp2(torch.floor(torch.log2(torch.where(top > 0, top, 1.0))) + 1 - bits)
        slices.append(torch.round(rest / grid) * grid)
        rest = rest - slices[-1]
    return slices
