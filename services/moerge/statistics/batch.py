"""Micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from moerge.batches import bucket, pad


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
