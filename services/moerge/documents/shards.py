"""The shard plan: fixed documents in fixed micro-batches, so that equal shards give equal integers."""

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from moerge.documents.pool import Pool
from moerge.models.tokens import Tokens
from moerge_proto.statistics_file import StatisticsSettings

T = TypeVar("T")
TOKENS_PER_HIDDEN = 64
"""A shard holds at least 64 H tokens, so that its sums are smaller than its features."""


def shard_name(key: bytes, rows: Sequence[Tokens]) -> str:
    """HMAC-SHA-256, in hex, of the shard's tokens; equal documents in equal batches have equal names."""
    mac = hmac.new(key, digestmod="sha256")
    for row in rows:
        mac.update(row.packed)
    return mac.hexdigest()


@dataclass(frozen=True)
class Shard:
    """The owner's unit of work, named by the HMAC of its tokens, without text before them.

    A row has at most `context` tokens, of which one counts at least; a longer document has several rows. Rows `again`
    have the same tokens that count, in the same order, behind other text; none without a context weight.
    """

    name: str
    rows: list[Tokens]
    documents: int
    again: list[Tokens] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


def enough(hidden_size: int) -> int:
    """The tokens of a shard, unless the text has fewer."""
    return TOKENS_PER_HIDDEN * hidden_size


def plan(
    documents: Iterable[T],
    encode: Callable[[T], Tokens],
    settings: StatisticsSettings,
    hidden_size: int,
    key: bytes,
    pool: Pool | None = None,
) -> Iterator[Shard]:
    """Cuts documents into shards, in the order given, with at most one further shard in memory.

    With a `pool` documents are cut into its settings' pieces, each behind a text of the pool, or two. The rest at the
    end is a separate shard only if it is large enough, or the only one. With noise all documents are taken as equally
    long, so that the number of shards depends on that of documents alone.
    """
    alike = None if settings.privacy is None else settings.tokens_per_document
    done, current, size = list[list[Tokens]](), list[list[Tokens]](), 0
    for document in documents:
        rows = cut(encode(document), settings, settings.context if pool is None else pool.settings.piece)
        if not rows:
            continue
        current.append(rows)
        size += sum(row.count for row in rows) if alike is None else alike
        if size >= enough(hidden_size):
            if done:
                yield _shard(done, key, pool)
            done, current, size = current, [], 0
    if done or current:
        yield _shard(done + current, key, pool)


def cut(tokens: Tokens, settings: StatisticsSettings, size: int | None = None) -> list[Tokens]:
    """A document's rows: at most `tokens_per_document` tokens that count, in pieces of at most `size` or `context`.

    With noise a document is its first row.
    """
    pieces = tokens.first(settings.tokens_per_document).pieces(settings.context if size is None else size)
    rows = [row for row in pieces if row.count]
    return rows if settings.privacy is None else rows[:1]


def _shard(documents: list[list[Tokens]], key: bytes, pool: Pool | None) -> Shard:
    rows = [row for document in documents for row in document]
    name = shard_name(key, rows)
    if pool is None:
        return Shard(name, rows, len(documents))
    views = list(zip(*map(pool.behind, rows), strict=True))
    return Shard(name, list(views[0]), len(documents), *map(list, views[1:]))
