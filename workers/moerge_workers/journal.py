"""The journal: one statistics file that names the shards that it holds, replaced whole."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.statistics.accumulate import ShardSums
from moerge_proto.statistics_file import Int64, Manifest, StatisticsFile, StatisticsFileError, write


class Journal:
    """Sums of the shards that are done. What a killed worker had journaled is not computed again.

    Args:
        path: of the statistics file, which is the contribution once every shard is in it.
        blank: the manifest that all of it shares; its counts and shards are replaced.
        seconds: `add` writes at most every so many seconds; `save` always does.
    """

    def __init__(self, path: Path, blank: Manifest, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self._blank = blank
        self._sums: ShardSums | None = None
        self.shards: set[str] = set()
        self._saved = time.monotonic()
        if path.is_file():
            self._load()

    def _load(self) -> None:
        try:
            with StatisticsFile(self._path) as file:
                manifest, layers = file.manifest, list(file.layers())
        except StatisticsFileError as error:
            todo = "remove the file; its shards are then computed again"
            raise MoergeError(f"a damaged journal: {error}", where=str(self._path), todo=todo) from error
        same = {"tokens": 1, "documents": 1, "shards": self._blank.shards}
        if manifest.model_copy(update=same) != self._blank.model_copy(update=same):
            todo = "remove the file, or use another --home"
            raise MoergeError("a journal of other work", where=str(self._path), todo=todo)
        gram, cross = (np.stack([layer[part] for layer in layers]) for part in (0, 1))
        self._sums = ShardSums(gram, cross, manifest.tokens, manifest.documents)
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
            raise MoergeError("no document has any token", where="--data", todo="check the files' field 'text'")
        manifest = Manifest.model_validate(
            self._blank.model_dump()
            | {"tokens": sums.tokens, "documents": sums.documents, "shards": sorted(self.shards)}
        )
        with atomic_file(self._path) as out:
            write(out, manifest, self._layers(sums))
        self._saved = time.monotonic()
        return manifest

    @staticmethod
    def _layers(sums: ShardSums) -> Iterator[tuple[Int64, Int64]]:
        return zip(sums.gram, sums.cross, strict=True)
