"""The first documents of an owner's data, read before anything leaves: data that is of no use is found then."""

from collections import Counter
from dataclasses import dataclass

from moerge.documents.shards import cut, enough
from moerge.errors import MoergeError
from moerge_workers.data.splits import Data
from moerge_workers.settings import Settings

_MOST_DOCUMENTS = 2000
_MOST_BYTES = 4 * 10**6


@dataclass
class _Bytes:
    """Bytes of the files read so far."""

    read: int = 0

    def advance(self, n: int) -> None:
        self.read += n


def read_first(settings: Settings, data: Data, hidden_size: int) -> str:
    """A summary of the data: the first documents as counted, all of it as estimated from the size of its files.

    Raises:
        MoergeError: documents can't be read; or router or trunk contributions are wanted, and there is no document for
            them, or all the data is less than the policy's minimum.
    """
    splits, tokens, done, size, every = Counter[str](), Counter[str](), _Bytes(), 0, True
    for _, split, document in data.documents(done):
        if not (every := splits.total() < _MOST_DOCUMENTS and size < _MOST_BYTES):
            break
        rows = cut(data.encode(document), settings.statistics)
        splits[split] += bool(rows)
        tokens[split] += sum(row.count for row in rows)
        size += len(document.text.encode())
    least = enough(hidden_size)
    if settings.policy.router_contributions or settings.trunk_contribution:
        if not splits["statistics"]:
            todo = "check what --text-field or --chat names, and the shares"
            raise MoergeError("no document with a token that counts", where="--data", todo=todo)
        if every and (why := settings.policy.too_small(splits["statistics"], tokens["statistics"], least)):
            raise too_little(why)
    parts = ", ".join(f"{count:,} {split}" for split, count in splits.most_common())
    share = 1.0 if every else max(size, done.read) / max(data.size(), 1)
    read = f"{splits.total():,} documents read ({parts}), {tokens.total():,} tokens"
    if not every:
        read += f"; in all about {splits.total() / share:,.0f} documents, {tokens.total() / share:,.0f} tokens"
    if tokens.total() / share < least:
        read += f"; this is less than a shard of {least:,} tokens, so the sums tell more on single documents"
    return read


def too_little(why: str) -> MoergeError:
    """The error of data that is less than the policy's minimum; `why` is `Policy.too_small`'s."""
    todo = "add documents; or lower the minimum in worker.toml's [policy], if the sums may show single documents"
    return MoergeError(f"too little data: {why}", where="--data", todo=todo)
