"""Publishing the next version on the same body."""

import os
import shutil
from itertools import count
from pathlib import Path

from bench import ours
from bench.inputs import Shape, experts, read_once, statistics_files
from bench.measure import in_turns, seconds
from bench.merge import EXPERTS, SHAPE, SHAPES, emptied
from bench.registry import HOME, Pair, benchmark

SMALL = Shape(intermediate=1024, vocabulary=4000)


class Again:
    """A store with a version of all experts, and the sides of both figures.

    Every version has its own lambda and a further contribution, so its routers are solved anew.
    """

    def __init__(self, shape: Shape, folder: Path) -> None:
        self._folder = folder
        self._folders = experts(shape, EXPERTS)
        self._statistics = statistics_files(shape, [*(f"d{slot}" for slot in range(EXPERTS)), "d0"])
        read_once(*self._statistics, *(folder / "model.safetensors" for folder in self._folders))
        self._store = ours.Store(emptied(folder))
        self._body = self._store.blobs.path(ours.merge(self._store, self._folders).sha256)
        self._numbers = count(2)
        ours.publish(self._store, "1", self._body, self._folders, self._statistics[:EXPERTS])

    def next_version(self) -> float:
        """Seconds to publish the routers of a further contribution; all other files exist."""
        number = next(self._numbers)
        arguments = (self._store, str(number), self._body, self._folders, self._statistics, 0.01 * number)
        return seconds(lambda: ours.publish(*arguments))

    def whole_version(self) -> float:
        """Seconds to write the first version's files again, to the disk."""
        files = list((self._folder / "versions" / "1").iterdir())
        target = emptied(HOME / "whole")

        def write() -> None:
            for file in files:
                with file.open("rb") as source, (target / file.name).open("wb") as out:
                    shutil.copyfileobj(source, out, 2**24)
                    os.fsync(out.fileno())

        return seconds(write)


@benchmark(
    "version-again", "next version on the same body, s", "a copy of the whole checkpoint, fsync", ">=", 20.0, SHAPES
)
def version_again() -> list[Pair]:
    large = Again(SHAPE, HOME / "work")
    runs = in_turns(large.next_version, large.whole_version)
    for folder in ("work", "whole"):
        shutil.rmtree(HOME / folder)
    return runs


@benchmark(
    "version-again-size",
    f"next version of experts of {SHAPE.bytes / 1e9:.2f} GB, s",
    f"of {SMALL.bytes / 1e9:.2f} GB",
    "<=",
    1.5,
    f"{EXPERTS} experts, {SHAPE} and {SMALL}, float32",
)
def version_again_size() -> list[Pair]:
    large, small = Again(SHAPE, HOME / "work"), Again(SMALL, HOME / "small")
    runs = in_turns(large.next_version, small.next_version, 10)
    for folder in ("work", "small"):
        shutil.rmtree(HOME / folder)
    return runs
