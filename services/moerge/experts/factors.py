"""The low-rank part of a matrix's difference from a base's, as two factors.

The part is the truncated singular value decomposition, the nearest matrix of its rank (Eckart and Young 1936), computed
in float64 on one thread. Its factors are rounded to the matrix's number format.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from moerge.threads import one_thread
from moerge_proto.experts import Rank

KEPT = 0.9
"""Share of the squared Frobenius norm of the difference that `auto` keeps."""


class Difference(NamedTuple):
    """A matrix's difference from the base's, [m, n] float64 with m <= n, or its transpose.

    Attributes:
        matrix: the difference.
        vectors: its left singular vectors, [m, m]; the first has the largest singular value.
        energies: the squares of the singular values, [m], in that order.
    """

    matrix: Tensor
    vectors: Tensor
    energies: Tensor

    @classmethod
    def of(cls, base: Tensor, own: Tensor) -> "Difference":
        matrix = own.double() - base.double()
        wide = matrix if len(matrix) <= matrix.shape[1] else matrix.T
        energies, vectors = torch.linalg.eigh(wide @ wide.T)  # ascending
        return cls(wide, vectors.flip(1), energies.flip(0).clamp(min=0))

    def rank(self, asked: Rank) -> int:
        """The rank asked for, or for `auto` the smallest that keeps the share KEPT."""
        if asked != "auto":
            return min(asked, len(self.energies))
        kept, total = self.energies.cumsum(0), self.energies.sum()
        return int((kept < KEPT * total).sum()) + int(total > 0)


class Factors(NamedTuple):
    """The low-rank part `up @ down` of a matrix's difference, in the matrix's dtype."""

    up: Tensor  # [out, r]
    down: Tensor  # [r, in]

    @property
    def rank(self) -> int:
        return len(self.down)


def factors(base: Tensor, own: Tensor, asked: Rank) -> Factors | None:
    """The factors for matrices [out, in]; None if they would have as many numbers as the matrix, or none at all."""
    with one_thread():
        found = Difference.of(base, own)
        rank = found.rank(asked)
        if not 0 < rank * sum(own.shape) < own.numel():
            return None
        left = found.vectors[:, :rank]
        right = left.T @ found.matrix
        up, down = (left, right) if right.shape[1] == own.shape[1] else (right.T, left.T)
        return Factors(up.to(own.dtype).contiguous(), down.to(own.dtype).contiguous())
