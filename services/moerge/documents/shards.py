"""The shard plan: fixed documents in fixed micro-batches, so that equal shards give equal integers."""

import hmac
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from moerge_proto.statistics_file import StatisticsSettings

T = TypeVar("T")
TOKENS_PER_HIDDEN = 64
"""A shard holds at least 64 H tokens, so that its sums are smaller than what they sum."""


def shard_name(key: bytes, rows: list[list[int]]) -> str:
    """HMAC-SHA-256, in hex, of the shard's token ids; equal documents in equal batches have equal names."""
    mac = hmac.new(key, digestmod="sha256")
    for row in rows:
        mac.update(len(row).to_bytes(8, "little"))
        mac.update(b"".join(token.to_bytes(4, "little", signed=True) for token in row))
    return mac.hexdigest()


@dataclass(frozen=True)
class Shard:
    """The owner's unit of work.

    Attributes:
        name: HMAC of its tokens.
        rows: token ids, at most `context` a row; a longer document takes several. One that the model reads, but that
            doesn't count, is ~id, so negative; every row has one that counts.
        documents: how many documents the rows are.
    """

    name: str
    rows: list[list[int]]
    documents: int

    @property
    def tokens(self) -> int:
        """How many tokens count."""
        return sum(map(_counted, self.rows))


def _counted(ids: list[int]) -> int:
    return sum(id_ >= 0 for id_ in ids)


def enough(hidden_size: int) -> int:
    """Tokens that a shard holds, unless it is all there is."""
    return TOKENS_PER_HIDDEN * hidden_size


def plan(
    documents: Iterable[T],
    encode: Callable[[T], list[int]],
    settings: StatisticsSettings,
    hidden_size: int,
    key: bytes,
) -> Iterator[Shard]:
    """Cuts documents into shards, in the order given, with at most one shard more than asked for in memory.

    `encode` gives a document's ids, as in a shard's rows. What is left at the end is its own shard only if it is large
    enough, or all there is.
    """
    done: list[list[list[int]]] = []
    current: list[list[list[int]]] = []
    size = 0
    for document in documents:
        rows = cut(encode(document), settings)
        if not rows:
            continue
        current.append(rows)
        size += sum(map(_counted, rows))
        if size >= enough(hidden_size):
            if done:
                yield _shard(done, key)
            done, current, size = current, [], 0
    if done or current:
        yield _shard(done + current, key)


def cut(ids: list[int], settings: StatisticsSettings) -> list[list[int]]:
    """A document's rows: as much of it as counts, in pieces of at most `context`."""
    ids = first(ids, settings.tokens_per_document)
    rows = [ids[start : start + settings.context] for start in range(0, len(ids), settings.context)]
    return [row for row in rows if _counted(row)]


def first(ids: list[int], most: int | None) -> list[int]:
    """A document's ids up to the last of the first `most` that count."""
    if most is None or len(ids) <= most:
        return ids
    places = [place for place, id_ in enumerate(ids) if id_ >= 0]
    return ids if len(places) <= most else ids[: places[most - 1] + 1]


def _shard(documents: list[list[list[int]]], key: bytes) -> Shard:
    rows = [row for document in documents for row in document]
    return Shard(shard_name(key, rows), rows, len(documents))
