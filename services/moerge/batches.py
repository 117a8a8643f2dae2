"""Rows of token ids in padded batches of similar length."""

from collections.abc import Callable, Iterator, Sequence
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
