"""Rows of token ids in padded micro-batches of similar length."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from moerge.models.tokens import Tokens

T = TypeVar("T")


def bucket(rows: Sequence[T], length: Callable[[T], int], batch_tokens: int) -> Iterator[list[T]]:
    """Rows in batches, longest first, of at most `batch_tokens` ids with padding; a longer row is a batch alone."""
    batch: list[T] = []
    for row in sorted(rows, key=lambda item: -length(item)):
        if batch and length(batch[0]) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def arranged(rows: Sequence[Tokens], batch_tokens: int, chunk: int = 1) -> Iterator[list[Tokens]]:
    """The rows of each micro-batch, by length; `chunk`: a row's computed length is a multiple of it."""
    return bucket(rows, lambda row: -(-len(row) // chunk) * chunk, batch_tokens)


def pad(rows: Sequence[Sequence[int]], dtype: torch.dtype = torch.int64) -> Tensor:
    """Rows of ids or marks, padded on the right with 0: [B, T]. Causal models ignore the padding."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)


@dataclass(frozen=True)
class Batch:
    """A micro-batch, padded on the right.

    Attributes:
        input_ids: [B, T] int64.
        lengths: [B] int64, real tokens of each row.
        counted: [B, T] bool, the tokens whose features are summed; the model reads the other real tokens too.
    """

    input_ids: Tensor
    lengths: Tensor
    counted: Tensor

    @property
    def real(self) -> Tensor:  # [B, T] bool
        return torch.arange(self.input_ids.shape[1]) < self.lengths[:, None]


def batches(rows: Sequence[Tokens], batch_tokens: int, chunk: int = 1) -> Iterator[Batch]:
    """The micro-batches of a shard's rows, by length; a pure function of its arguments. `chunk`: see `arranged`."""
    for batch in arranged(rows, batch_tokens, chunk):
        yield Batch(
            pad([row.ids for row in batch]),
            torch.tensor([len(row) for row in batch]),
            pad([row.mask for row in batch], torch.bool),
        )
