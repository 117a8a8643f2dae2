"""Batches of training text: documents joined into rows, and rows drawn from a mixture of sources."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor


def joined(documents: Iterable[Sequence[int]], end: int | None, context: int) -> Tensor:
    """All documents, each followed by the token `end` if given, cut into rows: [n, context] int64, without the rest."""
    after = () if end is None else (end,)
    ids = torch.tensor([token for document in documents for token in (*document, *after)], dtype=torch.int64)
    return ids[: len(ids) // context * context].view(-1, context)


def batches(
    sources: Sequence[Tensor], steps: int, size: int, seed: int, weights: Sequence[float] | None = None
) -> Iterator[Tensor]:
    """`steps` batches of rows, [size, context] int64, drawn in shuffled passes over each source's rows.

    Args:
        sources: rows of each source, [n, context] int64.
        weights: of the sources in the mixture; None: equal ones.
    """
    generator, total = torch.Generator().manual_seed(seed), steps * size
    shares = torch.tensor(list(weights or [1] * len(sources)), dtype=torch.float64)
    source = torch.zeros(total, dtype=torch.int64)
    if len(sources) > 1:
        source = torch.multinomial(shares, total, replacement=True, generator=generator)
    drawn, first = torch.empty(total, dtype=torch.int64), 0
    for number, rows in enumerate(sources):
        places = (source == number).nonzero()[:, 0]
        if len(places):
            passes = math.ceil(len(places) / len(rows))
            order = torch.cat([torch.randperm(len(rows), generator=generator) for _ in range(passes)])
            drawn[places] = first + order[: len(places)]
        first += len(rows)
    every = torch.cat(list(sources))
    for step in range(steps):
        yield every[drawn[step * size : (step + 1) * size]]
