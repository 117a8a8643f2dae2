"""The journal: one statistics file that names the shards that it holds, replaced whole."""

import time
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.statistics.accumulate import ShardSums
from moerge_proto.statistics_file import Manifest, StatisticsFile, StatisticsFileError, write


class Journal:
    """Sums of the shards that are done. What a killed worker had journaled is not computed again.

    Args:
        path: of the statistics file, which is the contribution once every shard is in it.
        blank: the manifest that all of it shares; its counts and shards are replaced.
        seconds: `add` writes at most every so many seconds; `save` always does.
        before: an earlier journal that this one goes on from, if it isn't begun yet.
    """

    def __init__(self, path: Path, blank: Manifest, seconds: float, before: Path | None = None) -> None:
        self.path, self._seconds = path, seconds
        self._blank = blank
        self._sums: ShardSums | None = None
        self.shards: set[str] = set()
        self._saved = time.monotonic()
        if path.is_file():
            self._load(path)
        elif before is not None:
            self._load(before)

    def _load(self, path: Path) -> None:
        try:
            with StatisticsFile(path) as file:
                manifest = file.manifest
                arrays = {name: file.array(name) for name, _ in manifest.layout()}
        except StatisticsFileError as error:
            todo = "remove the file; its shards are then computed again"
            raise MoergeError(f"a damaged journal: {error}", where=str(path), todo=todo) from error
        same = {"tokens": 1, "documents": 1, "shards": self._blank.shards}
        if manifest.model_copy(update=same) != self._blank.model_copy(update=same):
            todo = "remove the file, or use another --home"
            raise MoergeError("a journal of other work", where=str(path), todo=todo)
        self._sums = ShardSums(arrays, manifest.tokens, manifest.documents)
        self.shards = set(manifest.shards)

    def add(self, shard: str, sums: ShardSums) -> None:
        """Adds a shard that is not in the journal yet."""
        if shard in self.shards:
            raise ValueError(f"shard {shard} counts already")
        before = self._sums
        self._sums = sums if before is None else before + sums
        self.shards.add(shard)
        if time.monotonic() - self._saved >= self._seconds:
            self.save()

    def save(self) -> Manifest:
        """Replaces the file by what is in memory, and returns its manifest."""
        sums = self._sums
        if sums is None:
            raise MoergeError(
                "no document has any token", where="--data", todo="check what --text-field names, and the shares"
            )
        counts = {"tokens": sums.tokens, "documents": sums.documents, "shards": sorted(self.shards)}
        manifest = type(self._blank).model_validate(self._blank.model_dump() | counts)
        with atomic_file(self.path) as out:
            write(out, manifest, sums.arrays.values())
        self._saved = time.monotonic()
        return manifest
