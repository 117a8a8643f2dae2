"""The linear system behind every kind of router: W = (A + lambda I)^-1 b, columns normalised (DUME eq. 6)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moerge.errors import SolveError

SOLVER = f"ridge-3 torch-{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
"""The solver build that determines a version's bits: method, library, instruction set."""

_REFINEMENTS = 4
_CONVERGED = 2.0**-22  # after such a correction the error is about its square
_MATRIX_BITS = 26
_ITERATIONS = 4


class NotDefiniteError(SolveError):
    """A + lambda I is not positive definite."""


@dataclass(frozen=True)
class Ridge:
    """A factorised system: matrix = A + lambda I = factor factor^T, both [H, H] float64."""

    matrix: Tensor
    factor: Tensor

    @classmethod
    def of(cls, gram: Tensor, ridge_lambda: float) -> "Ridge":
        """Factorises gram + ridge_lambda I; changes `gram`, symmetric [H, H] float64. May raise NotDefiniteError."""
        gram.diagonal().add_(ridge_lambda)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if int(failed):
            diagonal = gram.diagonal()
            raise NotDefiniteError(
                f"A + lambda I is not positive definite at row {int(failed)}; its diagonal spans "
                f"{float(diagonal.min()):.3g} to {float(diagonal.max()):.3g}",
                todo=f"raise lambda from {ridge_lambda:g}, or send more tokens",
            )
        return cls(gram, factor)

    def solve(self, cross: Tensor) -> Tensor:
        """(A + lambda I)^-1 cross, [H, D] float64, by Cholesky and iterative refinement.

        Residuals have about 80 bits, so the relative error stays below 1e-9 up to a condition of 1e13.
        """
        solution = _substitute(cross, self.factor)
        coarse, fine = _two_slices(self.matrix)
        for _ in range(_REFINEMENTS):
            correction = _substitute(_residual(coarse, fine, solution, cross), self.factor)
            solution = solution + correction
            if float((correction.norm(dim=0) / solution.norm(dim=0).clamp_min(1e-300)).max()) < _CONVERGED:
                break
        return solution

    def condition(self) -> float:
        """A lower estimate of the 2-norm condition, by a few steps of power and inverse iteration."""
        largest, smallest = (torch.zeros(len(self.matrix), 1, dtype=torch.float64) for _ in range(2))
        largest[self.matrix.diagonal().argmax()] = 1
        smallest[self.factor.diagonal().argmin()] = 1
        for _ in range(_ITERATIONS):
            largest = self.matrix @ (largest / largest.norm())
            smallest = _substitute(smallest / smallest.norm(), self.factor)
        return float(largest.norm() * smallest.norm())


def unit_columns(solution: Tensor, names: Sequence[str] = ()) -> Tensor:
    """The columns divided by their norms (DUME eq. 6); SolveError for a zero column."""
    norms: Tensor = torch.linalg.vector_norm(solution, dim=0)
    if not bool((norms > 0).all()):
        column = int((~(norms > 0)).nonzero()[0])
        raise SolveError(
            f"column {column}{f', {names[column]},' if names else ''} has no direction: its features sum to zero",
            todo="withdraw its contribution, or leave its expert out",
        )
    return solution / norms


def _residual(coarse: Tensor, fine: Tensor, solution: Tensor, cross: Tensor) -> Tensor:
    """cross - (coarse + fine) @ solution, with the leading products computed exactly (Ozaki et al., 2012).

    The solution is cut into slices of so few bits that their products with `coarse` add up without rounding. The
    largest are subtracted first, so that they cancel.
    """
    bits = 53 - _MATRIX_BITS - len(coarse).bit_length()
    slices, rest = [], solution
    for _ in range(2):
        top = rest.abs().amax(dim=0, keepdim=True)
        slices.append(_rounded(rest, torch.frexp(top).exponent - bits))
        rest = rest - slices[-1]
    products = (coarse @ torch.cat([*slices, rest], dim=1)).chunk(3, dim=1)
    return cross - products[0] - products[1] - products[2] - (solution.T @ fine.T).T


def _substitute(right: Tensor, factor: Tensor) -> Tensor:
    """(factor factor^T)^-1 right; torch.cholesky_solve is slower, because it copies the factor."""
    middle = torch.linalg.solve_triangular(factor, right, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, middle, upper=True)
    return solution


def _two_slices(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A positive definite matrix as coarse + fine; each row of `coarse` has _MATRIX_BITS on its own grid."""
    diagonal = matrix.diagonal()
    largest = (diagonal * diagonal.max()).sqrt()[:, None]  # no entry of the row exceeds it
    coarse = _rounded(matrix, torch.frexp(largest).exponent + 1 - _MATRIX_BITS)
    return coarse, matrix - coarse


def _rounded(values: Tensor, exponent: Tensor) -> Tensor:
    """Values on the grid 2**exponent, by adding and subtracting a number with that last place."""
    magic = 1.5 * torch.exp2((exponent + 52).double())
    return (values + magic).sub_(magic)
