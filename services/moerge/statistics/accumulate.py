"""Sums over one shard, as integers: gram and cross of a layer's features (DUME eq. 5), and grams for a trunk."""

from dataclasses import dataclass

import torch
from torch import Tensor

from moerge.statistics.integers import add, pack, to_integers
from moerge_proto.statistics_file import Int64

_BLOCK = 128  # rows of a gram per product; only columns from their first on are computed


@dataclass(frozen=True)
class ShardSums:
    """The sums of some shards, for all layers or some.

    Attributes:
        arrays: the statistics file's tensors of these layers by name, in its order, int64.
        tokens: number of tokens that count.
        documents: number of documents.
    """

    arrays: dict[str, Int64]
    tokens: int
    documents: int

    def __add__(self, other: "ShardSums") -> "ShardSums":
        """The exact sum; the order and grouping of shards change nothing.

        Raises:
            ContributionError: a sum overflows int64.
        """
        return ShardSums(
            {name: add(array, other.arrays[name]) for name, array in self.arrays.items()},
            self.tokens + other.tokens,
            self.documents + other.documents,
        )


class Sum:
    """The gram and the sum of the vectors of one shard: products in float32, sums over micro-batches in float64.

    Each is rounded once, when it is read, to an integer; the gram is read last.
    """

    def __init__(self) -> None:
        self._gram = self._cross = torch.empty(0)

    def add(self, x: Tensor) -> None:
        """Adds vectors x [n, size], float32 or bfloat16, all of one size."""
        if not len(self._gram):
            size = x.shape[1]
            self._gram = torch.zeros(size, size, dtype=torch.float64, device=x.device)  # upper triangle, by blocks
            self._cross = torch.zeros(size, dtype=torch.float64, device=x.device)
        for start in range(0, x.shape[1], _BLOCK):
            rows = x[:, start : start + _BLOCK].T
            self._gram[start : start + _BLOCK, start:] += _product(rows, x[:, start:])
        self._cross += x.sum(dim=0, dtype=torch.float64)

    @torch.inference_mode()
    def gram(self, exponent: int, gains: Tensor | None) -> Int64:
        """The upper triangle of the gram of x / gains, 0 where a gain is 0, times 2**exponent, rounded once."""
        square = self._gram.cpu()
        if gains is not None:
            inverse = _inverse(gains)
            square.mul_(inverse[:, None]).mul_(inverse)
        return to_integers(pack(square.numpy()), exponent)

    def cross(self, exponent: int, gains: Tensor | None) -> Int64:
        """The sum of x / gains, rounded in the same way."""
        whole = self._cross.cpu()
        return to_integers((whole if gains is None else whole * _inverse(gains)).numpy(), exponent)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in float32; on a GPU the factors may be bfloat16, which tensor cores multiply exactly."""
    if left.is_cuda and left.dtype is torch.bfloat16:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _inverse(gains: Tensor) -> Tensor:
    """1 / gains in float64, and 0 where a gain is 0."""
    wide = gains.double()
    return torch.where(wide == 0, 0.0, 1 / torch.where(wide == 0, 1.0, wide))
