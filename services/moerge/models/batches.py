"""Rows of token ids in padded micro-batches of similar length."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def bucket(rows: Sequence[T], length: Callable[[T], int], batch_tokens: int) -> Iterator[list[T]]:
    """Rows in batches, longest first, each of at most `batch_tokens` ids with its padding (a longer row goes alone)."""
    batch: list[T] = []
    for row in sorted(rows, key=lambda each: -length(each)):
        if batch and length(batch[0]) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def pad(rows: Sequence[list[int]]) -> Tensor:
    """Rows of ids, padded on the right with 0: [B, T] int64. Causal models never look at the padding."""
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


@dataclass(frozen=True)
class Batch:
    """A micro-batch, padded on the right.

    Attributes:
        input_ids: [B, T] int64.
        lengths: [B] int64, real tokens of each row.
        chosen: [B, T] bool, which of the real tokens count; None if all do. The model reads the others too.
    """

    input_ids: Tensor
    lengths: Tensor
    chosen: Tensor | None = None

    @property
    def real(self) -> Tensor:  # [B, T] bool
        return torch.arange(self.input_ids.shape[1]) < self.lengths[:, None]

    @property
    def counted(self) -> Tensor:  # [B, T] bool
        """The tokens whose features are summed."""
        return self.real if self.chosen is None else self.real & self.chosen


def batches(rows: list[list[int]], batch_tokens: int) -> Iterator[Batch]:
    """The micro-batches of a shard's rows, by length; a pure function of both. An id that doesn't count is ~id."""
    for batch in bucket(rows, len, batch_tokens):
        ids = pad(batch)
        yield Batch(torch.where(ids < 0, ~ids, ids), torch.tensor([len(row) for row in batch]), ids >= 0)
