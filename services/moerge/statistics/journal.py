"""The journal: a statistics file with the names of its shards, replaced whole; or one per layer group."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.integers import add
from moerge_proto.statistics_file import Int64, Manifest, StatisticsFile, StatisticsFileError, write


class Journal:
    """Sums of finished shards. A restarted worker doesn't compute journaled shards again.

    The file is read when the first shard is added.

    Args:
        path: of the statistics file. With every shard and all layers it is the contribution.
        blank: the common manifest; its counts and shards are replaced.
        seconds: least time between writes by `add`; `save` writes if anything was added.
        before: an earlier contribution to start from, if the journal is new.
        layers: the layers of its sums; None: all.
    """

    def __init__(
        self, path: Path, blank: Manifest, seconds: float, before: Path | None = None, layers: range | None = None
    ) -> None:
        self.path, self._blank, self._seconds, self._layers = path, blank, seconds, layers
        self._manifest: Manifest | None = None  # of the file, if it is up to date
        # a file with unread sums
        self._begun = (path, layers) if path.is_file() else (before, None) if before is not None else None
        self._sums: dict[str, Int64] = {}
        self._tokens = self._documents = 0
        self.shards: set[str] = set()
        if self._begun is not None:
            with _opened(*self._begun) as file:
                _require_same(file.manifest, blank, self._begun[0])
                self.shards = set(file.manifest.shards)
                if self._begun[0] == path:
                    self._manifest = file.manifest
        self._saved = time.monotonic()

    def _read(self) -> None:
        if self._begun is None:
            return
        with _opened(*self._begun) as file:
            self._sums = {name: file.array(name) for name, _ in file.manifest.part(self._layers)}
            self._tokens, self._documents = file.manifest.tokens, file.manifest.documents
        self._begun = None

    def add(self, shard: str, sums: ShardSums) -> None:
        """Adds a new shard."""
        if shard in self.shards:
            raise ValueError(f"shard {shard} counts already")
        self._read()
        for name, array in sums.arrays.items():  # one at a time, so that only two sums are in memory
            self._sums[name] = add(self._sums[name], array) if name in self._sums else array
        self._tokens += sums.tokens
        self._documents += sums.documents
        self.shards.add(shard)
        self._manifest = None
        if time.monotonic() - self._saved >= self._seconds:
            self.save()

    def save(self) -> Manifest:
        """Replaces the file with the sums in memory, if they are newer, and returns its manifest."""
        if self._manifest is not None:
            return self._manifest
        if not self.shards:
            raise MoergeError(
                "no document has any token", where="--data", todo="check --text-field and the shares of the splits"
            )
        self._read()
        counts = {"tokens": self._tokens, "documents": self._documents, "shards": sorted(self.shards)}
        manifest = type(self._blank).model_validate(self._blank.model_dump() | counts)
        with atomic_file(self.path) as out:
            write(out, manifest, self._sums.values(), self._layers)
        self._saved, self._manifest = time.monotonic(), manifest
        return manifest


def join(path: Path, parts: Sequence[tuple[Path, range | None]]) -> Manifest:
    """Writes the contribution from complete journals of layer groups, in order, one tensor in memory at a time.

    Raises:
        MoergeError: a journal is damaged, or their shards differ.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(_opened(part, layers)) for part, layers in parts]
        manifest = files[0].manifest
        for file, (part, _) in zip(files, parts, strict=True):
            if file.manifest != manifest:
                todo = "remove the file; its shards are then computed again"
                raise MoergeError("the journal's shards differ from those of layer 0", where=str(part), todo=todo)
        with atomic_file(path) as out:
            write(out, manifest, (array for file in files for array in file.arrays()))
    return manifest


def _opened(path: Path, layers: range | None) -> StatisticsFile:
    try:
        return StatisticsFile(path, layers)
    except StatisticsFileError as error:
        todo = "remove the file; its shards are then computed again"
        raise MoergeError(f"the journal is damaged: {error}", where=str(path), todo=todo) from error


def _require_same(manifest: Manifest, blank: Manifest, path: Path) -> None:
    same = {"tokens": 1, "documents": 1, "shards": blank.shards}
    if manifest.model_copy(update=same) != blank.model_copy(update=same):
        raise MoergeError(
            "the journal belongs to other work", where=str(path), todo="remove the file, or use another --home"
        )
