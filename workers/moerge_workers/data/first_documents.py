"""The first documents of an owner's data, read before sending anything, to find unusable data early."""

from collections import Counter
from dataclasses import dataclass

from moerge.documents.shards import alike_of, cut, enough
from moerge.errors import MoergeError
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.data.documents import Data
from moerge_workers.settings import Settings

_MOST_DOCUMENTS = 2000
_MOST_BYTES = 4 * 10**6


@dataclass
class _Bytes:
    read: int = 0

    def advance(self, n: int) -> None:
        self.read += n


@dataclass(frozen=True)
class First:
    """A summary of the data, and the approximate numbers of its tokens and documents for statistics."""

    summary: str
    tokens: int
    documents: int


def read_first(settings: Settings, data: Data, hidden_size: int, limits: StatisticsSettings) -> First:
    """Counts of the first documents, and an estimate of the whole from the files' sizes; `limits`: of router sums.

    Raises:
        MoergeError: documents are unreadable, or too few for the contributions that the settings ask for.
    """
    splits, tokens, done, size, every = Counter[str](), Counter[str](), _Bytes(), 0, True
    alike = alike_of(limits)
    for _, split, document in data.documents(done):
        if not (every := splits.total() < _MOST_DOCUMENTS and size < _MOST_BYTES):
            break
        rows = cut(data.encode(document), limits)
        splits[split] += bool(rows)
        tokens[split] += sum(row.count for row in rows) if alike is None else alike * bool(rows)
        size += len(document.text.encode())
    least = enough(hidden_size)
    policy = settings.policy
    if policy.router_contributions or policy.head_contributions:
        if not splits["statistics"]:
            todo = "check `text_field` or `chat`, and the shares"
            raise MoergeError("no document has a token that counts", where="`data`", todo=todo)
        if every and (why := policy.too_small(splits["statistics"], tokens["statistics"], least)):
            raise too_little(why)
    parts = ", ".join(f"{count:,} {split}" for split, count in splits.most_common())
    share = 1.0 if every else max(size, done.read) / max(data.size(), 1)
    read = f"{splits.total():,} documents read ({parts}), {tokens.total():,} tokens"
    if not every:
        read += f"; in all about {splits.total() / share:,.0f} documents, {tokens.total() / share:,.0f} tokens"
    if tokens.total() / share < least:
        read += f"; this is less than a shard of {least:,} tokens, so the sums reveal more of single documents"
    return First(read, round(tokens["statistics"] / share), round(splits["statistics"] / share))


def too_little(why: str) -> MoergeError:
    todo = "add documents; or lower the minimum in worker.toml's [policy], if sums may reveal single documents"
    return MoergeError(f"too little data: {why}", where="`data`", todo=todo)
