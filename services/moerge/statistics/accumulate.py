"""Sums over one shard, as integers: gram and cross of a layer's features (DUME eq. 5), and grams for a body or head."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moerge.memory.needs import SUM_ROWS, sum_blocks
from moerge.statistics.integers import add, pack, to_integers
from moerge_proto.statistics_file import Int64, gram_length


@dataclass(frozen=True)
class ShardSums:
    """The sums of some shards: the statistics file's tensors of some layers, in its order, and counts."""

    arrays: dict[str, Int64]
    tokens: int
    documents: int

    def __add__(self, other: "ShardSums") -> "ShardSums":
        """The exact sum, whatever the order and grouping of shards; ContributionError if it overflows int64."""
        return ShardSums(
            {name: add(array, other.arrays[name]) for name, array in self.arrays.items()},
            self.tokens + other.tokens,
            self.documents + other.documents,
        )


class Sum:
    """The gram and the sum of one shard's vectors: products in float32, sums over micro-batches in float64."""

    def __init__(self) -> None:
        self._gram: list[Tensor] = []  # blocks of rows, each from its first row's column on: the upper triangle
        self._cross = torch.empty(0)

    def add(self, x: Tensor) -> None:
        """Adds vectors x [n, size], float32 or bfloat16."""
        size = x.shape[1]
        if not self._gram:
            self._gram = [torch.zeros(shape, dtype=torch.float64, device=x.device) for shape in sum_blocks(size)]
            self._cross = torch.zeros(size, dtype=torch.float64, device=x.device)
        for block, start in zip(self._gram, range(0, size, SUM_ROWS), strict=True):
            block += _product(x[:, start : start + SUM_ROWS].T, x[:, start:])
        self._cross += x.sum(dim=0, dtype=torch.float64)

    @torch.inference_mode()
    def gram(self, exponent: int, gains: Tensor | None) -> Int64:
        """The upper triangle of the gram of x / gains, 0 where a gain is 0, times 2**exponent, rounded once.

        Frees the sums.
        """
        size, done = len(self._cross), 0
        factors = None if gains is None else inverse(gains)
        packed = np.empty(gram_length(size), dtype=np.int64)
        for start in range(0, size, SUM_ROWS):
            block = self._gram.pop(0).cpu()
            if factors is not None:
                block.mul_(factors[start : start + len(block), None]).mul_(factors[start:])
            rows = pack(block.numpy())
            packed[done : done + len(rows)] = to_integers(rows, exponent)
            done += len(rows)
        return packed

    def cross(self, exponent: int, gains: Tensor | None) -> Int64:
        """The sum of x / gains, rounded in the same way."""
        whole = self._cross.cpu()
        return to_integers((whole if gains is None else whole * inverse(gains)).numpy(), exponent)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in float32; on a GPU the factors may be bfloat16, which tensor cores multiply exactly."""
    if left.is_cuda and left.dtype is torch.bfloat16:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def inverse(gains: Tensor) -> Tensor:
    """1 / gains in float64; 0 where a gain is 0."""
    wide = gains.double()
    return torch.where(wide == 0, 0.0, 1 / torch.where(wide == 0, 1.0, wide))
