"""The shard plan: fixed documents in fixed micro-batches, so that equal shards give equal integers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from moerge.batches import bucket, pad
from moerge.statistics.batch import Batch
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.identity import shard_name

TOKENS_PER_HIDDEN = 64
"""A shard holds at least 64 H tokens, so that its sums are smaller than what they sum."""


@dataclass(frozen=True)
class Shard:
    """The owner's unit of work.

    Attributes:
        name: HMAC of its tokens.
        rows: token ids, at most `context` a row; a longer document takes several.
        documents: how many documents the rows are.
    """

    name: str
    rows: list[list[int]]
    documents: int

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rows))


def plan(
    texts: Iterable[str],
    encode: Callable[[str], list[int]],
    settings: StatisticsSettings,
    hidden_size: int,
    key: bytes,
) -> Iterator[Shard]:
    """Cuts documents into shards, in the order given, with at most one shard more than asked for in memory.

    What is left at the end is its own shard only if it is large enough, or all there is.
    """
    enough = TOKENS_PER_HIDDEN * hidden_size
    done: list[list[list[int]]] = []
    current: list[list[list[int]]] = []
    size = 0
    for text in texts:
        ids = encode(text)[: settings.tokens_per_document]
        if not ids:
            continue
        current.append([ids[start : start + settings.context] for start in range(0, len(ids), settings.context)])
        size += len(ids)
        if size >= enough:
            if done:
                yield _shard(done, key)
            done, current, size = current, [], 0
    if done or current:
        yield _shard(done + current, key)


def _shard(documents: list[list[list[int]]], key: bytes) -> Shard:
    rows = [row for document in documents for row in document]
    return Shard(shard_name(key, rows), rows, len(documents))


def batches(rows: list[list[int]], batch_tokens: int) -> Iterator[Batch]:
    """The micro-batches of a shard's rows, by length; a pure function of both."""
    for batch in bucket(rows, len, batch_tokens):
        yield Batch(pad(batch), torch.tensor([len(row) for row in batch]))
