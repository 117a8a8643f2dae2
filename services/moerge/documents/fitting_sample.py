"""The documents for fitting an expert's MLPs: a bounded sample of its owner's text."""

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from moerge.documents.shards import cut, enough
from moerge.models.tokens import Tokens
from moerge_proto.statistics_file import StatisticsSettings

_TOKENS = 2**16


class _Kept(NamedTuple):
    """A document of the sample; `lot` is negative, so that a heap's first document has the highest digest."""

    lot: int
    place: int
    tokens: int
    rows: list[Tokens]


def fitting_tokens(hidden_size: int) -> int:
    """Enough tokens to fit MLPs: 65,536, or a shard's if that is more."""
    return max(_TOKENS, enough(hidden_size))


def fitting_sample(
    documents: Iterable[tuple[bytes, Callable[[], Tokens]]],
    settings: StatisticsSettings,
    tokens: int,
    least_documents: int,
) -> list[list[Tokens]]:
    """The rows of each document of the sample, in the order of the data; equal documents count once.

    The sample is a function of the texts alone: the documents with the lowest digests, as few as have `tokens` counted
    tokens and are `least_documents`; all, if they are too few. Only the sample is in memory.
    """
    kept, lots, total = list[_Kept](), set[int](), 0
    for place, (digest, encoded) in enumerate(documents):
        lot = -int.from_bytes(digest)
        complete = total >= tokens and len(kept) >= least_documents
        if lot in lots or (complete and lot < kept[0].lot) or not (rows := cut(encoded(), settings)):
            continue
        count = sum(row.count for row in rows)
        heapq.heappush(kept, _Kept(lot, place, count, rows))
        lots.add(lot)
        total += count
        while total - kept[0].tokens >= tokens and len(kept) > least_documents:
            last = heapq.heappop(kept)
            lots.remove(last.lot)
            total -= last.tokens
    return [item.rows for item in sorted(kept, key=lambda item: item.place)]
