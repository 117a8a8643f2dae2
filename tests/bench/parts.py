"""Parts of a version: a thousand readers with thirty different sets of its experts, on loopback."""

import tempfile
from functools import cache
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from bench.measure import say, seconds
from bench.registry import Pair, benchmark
from moerge_proto.recipes import SolveOptions
from support.federation import Federation, federation_of, files_below

READERS, SETS, DOMAINS = 1_000, 30, 6
SIZE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 1024, "num_hidden_layers": 4}


@cache
def made(
    readers: int = READERS, sets: int = SETS, size: tuple[tuple[str, Any], ...] = tuple(SIZE.items())
) -> list[Pair]:
    """Seconds of all parts, and of as many solves; bytes that the parts added, and all of their bytes.

    Raises:
        RuntimeError: the readers don't have this number of parts.
    """
    names, unscored = [f"d{number}" for number in range(DOMAINS)], "publication_max_rise = inf\n"
    with (
        tempfile.TemporaryDirectory() as place,
        federation_of(Path(place), *names, settings=unscored, **SIZE) as federation,
    ):
        federation.contribute(federation.body())
        federation.solve()
        with_grants(federation, names, readers, sets)
        operator, before = federation.operator, sum(files_below(federation.server).values())

        def make() -> None:
            for workflow in operator.make_parts(1):
                operator.wait(workflow)

        taken = seconds(make)
        added = sum(files_below(federation.server).values()) - before
        parts = operator.version_parts(1)
        if len(parts) != sets or not all(part.made for part in parts):
            raise RuntimeError(f"{len(parts)} parts, of {sets}")
        say(f"  {sets} parts for {sum(len(part.readers) for part in parts)} readers: {taken:.1f} s, {added:,} bytes")
        whole = sum(operator.version(part.name).bytes_total for part in parts)

        def solve() -> None:
            for number in range(sets):
                federation.solve(options=SolveOptions(ridge_lambda=0.02 + number / 100))

        return [(taken, seconds(solve)), (float(added), float(whole))]


def with_grants(federation: Federation, names: list[str], readers: int, sets: int) -> None:
    """Readers in equal groups, each of which may use other experts of the version."""
    every = (some for size in range(2, len(names)) for some in combinations(names, size))
    for number, some in enumerate(islice(every, sets)):
        for domain in some:
            federation.members[domain].client.grant(domain, f"group-{number}")
    for number in range(readers):
        federation.reader(f"reader-{number}", f"group-{number % sets}")


SHAPES = f"{READERS} readers, {SETS} sets of {DOMAINS} experts, H 128, L 4, MLP 1024, loopback, SQLite"


@benchmark("parts-time", f"{SETS} parts of a version, s", f"{SETS} solves of it", "<=", 1.0, SHAPES, process="parts")
def parts_time() -> list[Pair]:
    return made()[:1]


@benchmark(
    "parts-bytes",
    f"bytes that {SETS} parts add to the store",
    "copies of their files",
    "<=",
    0.05,
    SHAPES,
    process="parts",
)
def parts_bytes() -> list[Pair]:
    return made()[1:]
