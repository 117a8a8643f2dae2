"""The shard plan: fixed documents in fixed micro-batches, so that equal shards give equal integers."""

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from moerge.documents.pool import Pool
from moerge.models.tokens import Tokens
from moerge_proto.statistics_file import StatisticsSettings

T = TypeVar("T")
TOKENS_PER_HIDDEN = 64
"""A shard holds at least 64 H tokens, so that its sums are smaller than its features."""


def shard_name(key: bytes, rows: Sequence[Tokens], whole: Sequence[bytes] = ()) -> str:
    """HMAC-SHA-256, in hex, of the shard's tokens; equal documents in equal batches have equal names.

    `whole`: MACs of the documents, if a name must tell apart documents with equal rows.
    """
    mac = hmac.new(key, digestmod="sha256")
    for part in (*(row.packed for row in rows), *whole):
        mac.update(part)
    return mac.hexdigest()


@dataclass(frozen=True)
class Shard:
    """The owner's unit of work, named by the HMAC of its tokens, without text before them.

    A row has at most `context` tokens, of which one counts at least; a longer document has several rows. With noise
    documents are taken as equally long, of `alike` tokens, because all counts that leave would tell of lengths.
    """

    name: str
    rows: list[Tokens]
    documents: int
    alike: int | None = None

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows) if self.alike is None else self.documents * self.alike


class _Document(NamedTuple):
    rows: list[Tokens]
    whole: bytes


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

    With a `pool` documents are cut into its settings' pieces, each behind a text of the pool. The rest at the
    end is a separate shard only if it is large enough, or the only one. With noise the numbers of shards and of their
    documents depend on that of documents alone: shards of equal first rows have different names.
    """
    alike = alike_of(settings)
    done, current, size = list[_Document](), list[_Document](), 0
    for document in documents:
        tokens = encode(document)
        rows = cut(tokens, settings, settings.context if pool is None else pool.settings.piece)
        if not rows:
            continue
        current.append(_Document(rows, b"" if alike is None else hmac.digest(key, tokens.packed, "sha256")))
        size += sum(row.count for row in rows) if alike is None else alike
        if size >= enough(hidden_size):
            if done:
                yield _shard(done, key, pool, alike)
            done, current, size = current, [], 0
    if done or current:
        yield _shard(done + current, key, pool, alike)


def alike_of(settings: StatisticsSettings) -> int | None:
    """The tokens of each document with noise, see `Shard`; None: its own count."""
    return None if settings.privacy is None else settings.tokens_per_document


def cut(tokens: Tokens, settings: StatisticsSettings, size: int | None = None) -> list[Tokens]:
    """A document's rows: at most `tokens_per_document` tokens that count, in pieces of at most `size` or `context`.

    With noise a document is its first row.
    """
    pieces = tokens.first(settings.tokens_per_document).pieces(settings.context if size is None else size)
    rows = [row for row in pieces if row.count]
    return rows if settings.privacy is None else rows[:1]


def _shard(documents: list[_Document], key: bytes, pool: Pool | None, alike: int | None) -> Shard:
    rows = [row for document in documents for row in document.rows]
    name = shard_name(key, rows, [document.whole for document in documents])
    return Shard(name, rows if pool is None else list(map(pool.behind, rows)), len(documents), alike)
