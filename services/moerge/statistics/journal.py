"""The journal: the sums of each layer in a statistics file that names its shards, replaced whole."""

import glob
from collections.abc import Collection
from contextlib import ExitStack
from functools import reduce
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import atomic_file, unfinished
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.integers import add
from moerge.statistics.streamed import Saved, saved
from moerge_proto.digests import digest_of
from moerge_proto.statistics_file import Manifest, StatisticsFile, StatisticsFileError, write

_TODO = "remove the file; its shards are then computed again"
_NAME = 16  # hex digits in the name of a file of hidden states


class Journal:
    """Sums of a contribution, and hidden states of begun windows, in files beside it.

    A restarted worker computes no layer of a shard again. One layer's sums are in memory at a time.

    Args:
        path: of the contribution.
        blank: its manifest; counts and shards are replaced.
        before: an earlier contribution to start from.

    Attributes:
        shards: of each layer, the names of the shards in its sums.
        work: the digest of the work, in files of saved hidden states.

    Raises:
        MoergeError: a file is damaged or belongs to other work.
    """

    def __init__(self, path: Path, blank: Manifest, before: Path | None = None) -> None:
        self.path, self._blank = path, blank
        self.work = digest_of(blank.model_dump(mode="json"))
        whole = path if path.is_file() else before
        self._files: list[tuple[Path, range | None] | None] = []
        self.shards: list[set[str]] = []
        for layer in range(blank.layers):
            part = self._part(layer)
            file = (part, range(layer, layer + 1)) if part.is_file() else None if whole is None else (whole, None)
            self._files.append(file)
            self.shards.append(set() if file is None else self._names(*file))

    def _part(self, layer: int) -> Path:
        return self.path.with_name(f"{self.path.stem}.{layer}.part")

    def _names(self, path: Path, layers: range | None) -> set[str]:
        with _opened(path, layers) as file:
            manifest, blank = file.manifest, self._blank
        same = {"tokens": 1, "documents": 1, "shards": blank.shards}
        if manifest.model_copy(update=same) != blank.model_copy(update=same):
            todo = "remove the file, or use another `home`"
            raise MoergeError("the journal belongs to other work", where=str(path), todo=todo)
        return set(manifest.shards)

    @property
    def complete(self) -> set[str]:
        return reduce(set.intersection, self.shards).copy()

    @property
    def begun(self) -> set[str]:
        return reduce(set.union, self.shards).copy()

    def add(self, layer: int, shards: Collection[str], sums: ShardSums) -> None:
        """Adds sums of new shards to a layer's and replaces its file; ContributionError if a sum overflows int64."""
        if counted := self.shards[layer].intersection(shards):
            raise ValueError(f"shard {min(counted)} counts already")
        arrays, tokens, documents = sums.arrays, sums.tokens, sums.documents
        if (begun := self._files[layer]) is not None:
            with _opened(*begun) as file:
                arrays = {name: add(array, file.array(name)) for name, array in arrays.items()}
                tokens, documents = tokens + file.manifest.tokens, documents + file.manifest.documents
        names = self.shards[layer].union(shards)
        counts = {"tokens": tokens, "documents": documents, "shards": sorted(names)}
        manifest = type(self._blank).model_validate(self._blank.model_dump() | counts)
        part = range(layer, layer + 1)
        with atomic_file(self._part(layer), private=True) as out:
            write(out, manifest, arrays.values(), part)
        self._files[layer], self.shards[layer] = (self._part(layer), part), names

    def join(self) -> Manifest:
        """Writes the contribution, one tensor in memory at a time, and removes the journal.

        Raises:
            MoergeError: a file is damaged, or layers have different shards.
        """
        with ExitStack() as stack:
            opened = [stack.enter_context(_opened(*item)) for item in self._files if item is not None]
            manifest = opened[0].manifest
            for file in opened:
                if file.manifest != manifest:
                    problem = "the journal's shards differ from those of layer 0"
                    raise MoergeError(problem, where=str(self.path.with_name(file.name)), todo=_TODO)
            layers = enumerate(opened)
            names = ((file, name) for n, file in layers for name, _ in manifest.part(range(n, n + 1)))
            with atomic_file(self.path, private=True) as out:
                write(out, manifest, (file.array(name) for file, name in names))
        clear(self.path)
        return manifest

    def states(self, shards: Collection[str]) -> Path:
        return self.path.with_name(f"{self.path.stem}.{digest_of(' '.join(sorted(shards)))[:_NAME]}.states")

    def saved(self) -> list[Saved]:
        """The windows whose hidden states are saved; removes unusable files of hidden states in the folder."""
        result, files = [], _beside(self.path, "states")
        for path in self.path.parent.glob(f"*.{'[0-9a-f]' * _NAME}.states"):
            one = saved(path, self.work) if path in files else None  # of an earlier body, for example
            if one is not None and all(one.shards <= self.shards[layer] for layer in range(one.layer)):
                result.append(one)
            else:
                path.unlink()
        return result


def clear(path: Path) -> None:
    """Removes the journal of a contribution and its unfinished files."""
    for kind in ("part", "states"):
        for file in [*_beside(path, kind), *unfinished(path.with_name(f"{glob.escape(path.stem)}.*.{kind}"))]:
            file.unlink()


def _beside(path: Path, kind: str) -> list[Path]:
    return sorted(path.parent.glob(f"{glob.escape(path.stem)}.*.{kind}"))


def _opened(path: Path, layers: range | None) -> StatisticsFile:
    try:
        return StatisticsFile(path, layers)
    except StatisticsFileError as error:
        raise MoergeError(f"the journal is damaged: {error}", where=str(path), todo=_TODO) from error
