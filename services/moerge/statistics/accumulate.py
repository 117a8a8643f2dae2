"""Sums over one shard, as integers: gram and cross of a layer's features (DUME eq. 5), and grams for a body or head."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from moerge.memory.needs import sum_blocks
from moerge.statistics.features import placed
from moerge.statistics.integers import LIMIT, add
from moerge_proto.statistics_file import Int64

_ROWS, _GPU_ROWS = 32, 256
"""Rows of a gram that are rounded at a time: they stay in a processor's cache, and a GPU has enough to do."""


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


class Rounded(NamedTuple):
    """A shard's integers, where its sums were: a gram's upper triangle, and the sum of the vectors.

    `fits`: a boolean scalar, whether the sums were finite and below 2**62.
    """

    gram: Tensor
    cross: Tensor
    fits: Tensor


class Sum:
    """The gram and the sum of one shard's vectors: products in float32, sums over micro-batches in float64."""

    def __init__(self) -> None:
        self._gram = torch.empty(0, dtype=torch.float64)  # blocks of rows, each from its first row's column on
        self._cross = torch.empty(0, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Adds vectors x [n, size], float32 or bfloat16."""
        size = x.shape[1]
        if not len(self._cross):
            numbers = sum(rows * columns for rows, columns in sum_blocks(size, x.device.type))
            self._gram = torch.zeros(numbers, dtype=torch.float64, device=x.device)
            self._cross = torch.zeros(size, dtype=torch.float64, device=x.device)
        for start, block in self.blocks():
            block += _product(x[:, start : start + len(block)].T, x[:, start:])
        self._cross += x.sum(dim=0, dtype=torch.float64)

    @torch.inference_mode()
    def rounded(self, exponent: int, gains: Tensor | None) -> Rounded:
        """The sums of x / gains, 0 where a gain is 0, times 2**exponent, rounded once to nearest (ties to even).

        The integers take the memory of the sums. The diagonal bounds all of a gram (Cauchy-Schwarz), up to its
        rounding.
        """
        size, device = len(self._cross), self._cross.device
        factors = torch.ones(size, dtype=torch.float64) if gains is None else inverse(gains)
        columns, scaled = (placed(item, device) for item in (factors, factors * 2.0**exponent))  # the product is exact
        whole, rows = self._gram.view(torch.int64), _ROWS if self._gram.is_cpu else _GPU_ROWS
        diagonal, done = torch.cat([block.diagonal() for _, block in self.blocks()]), 0
        for start, block in self.blocks():
            for row in range(0, len(block), rows):
                part, at = block[row : row + rows, row:], start + row
                values = (part * scaled[at : at + len(part), None]).mul_(columns[at:]).round_()
                done = _pack(values, whole, done)
        cross = self._cross * scaled
        largest = torch.stack([(diagonal * scaled * columns).abs().max(), cross.abs().max()])
        return Rounded(whole[:done], cross.round_().to(torch.int64), (largest < LIMIT).all())

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """The first row of each block, and the block."""
        start = done = 0
        for rows, columns in sum_blocks(len(self._cross), self._cross.device.type):
            yield start, self._gram[done : done + rows * columns].view(rows, columns)
            start, done = start + rows, done + rows * columns


def _pack(part: Tensor, whole: Tensor, done: int) -> int:
    """Writes the triangle of `part` into `whole` from `done` on; returns the end. Rows behind `part` stay."""
    if not part.is_cpu:
        triangle = part[tuple(torch.triu_indices(*part.shape, device=part.device))]
        whole[done : (done := done + len(triangle))] = triangle.to(torch.int64)
        return done
    target: Int64 = whole.numpy()
    with np.errstate(invalid="ignore"):  # `fits` tells it
        for row, values in enumerate(part.numpy()):
            target[done : (done := done + len(values) - row)] = values[row:]
    return done


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in float32; on a GPU the factors may be bfloat16, which tensor cores multiply exactly."""
    if not left.is_cpu and left.dtype is torch.bfloat16:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def inverse(gains: Tensor) -> Tensor:
    """1 / gains in float64; 0 where a gain is 0."""
    wide = gains.double()
    return torch.where(wide == 0, 0.0, 1 / torch.where(wide == 0, 1.0, wide))
