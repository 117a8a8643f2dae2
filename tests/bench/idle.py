"""A coordinator with many idle workers, on loopback: how long an operator's reads take."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import RUNS, say, seconds
from bench.registry import Pair, benchmark
from moerge.client.client import Client
from moerge_proto.owners import NewOwner, NewToken, Role
from support.processes import Coordinator, coordinator

WORKERS, OWNERS, READS = 2000, 20, 200


def owners(operator: Client, count: int) -> list[str]:
    """The tokens of new owners."""
    names = [f"owner-{number}" for number in range(count)]
    for name in names:
        operator.add_owner(NewOwner(name=name, domains=[f"domain-of-{name}"]))
    return [operator.add_token(NewToken(role=Role.OWNER, owner=name)).secret for name in names]


@contextmanager
def idle_workers(server: Coordinator, workers: int, tokens: Path) -> Iterator[None]:
    """A process with the calls of idle workers, all of which wait."""
    command = [sys.executable, "-m", "bench.idle_workers", server.url, str(workers), str(tokens)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  # our own command
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "all wait\n":
                raise RuntimeError("the workers' process failed")
            yield
        finally:
            process.kill()


def slowest(operator: Client, reads: int) -> float:
    """The 99th percentile of the seconds of an operator's reads: lists of four kinds."""
    kinds = (operator.versions, operator.contributions, operator.experts, operator.owners)
    taken = sorted(seconds(kinds[number % len(kinds)]().page) for number in range(reads))
    return taken[reads * 99 // 100]


def against_none(workers: int, of: int, reads: int) -> list[Pair]:
    """Seconds of reads with so many idle workers of so many owners, and with none."""
    with (
        tempfile.TemporaryDirectory() as place,
        coordinator(Path(place) / "home") as server,
        server.client() as operator,
    ):
        tokens = Path(place) / "tokens"
        tokens.write_text("\n".join(owners(operator, of)))
        slowest(operator, reads)
        alone = [slowest(operator, reads) for _ in range(RUNS)]
        say(f"  alone: {alone}")
        with idle_workers(server, workers, tokens):
            say(f"  {workers} workers wait")
            beside = [slowest(operator, reads) for _ in range(RUNS)]
        return list(zip(beside, alone, strict=True))


@benchmark(
    "load-idle",
    f"an operator's reads beside {WORKERS} idle workers, 99th percentile, s",
    "the same without workers",
    "<=",
    3.0,
    f"{OWNERS} owners, {READS} reads, loopback, SQLite",
)
def load_idle() -> list[Pair]:
    return against_none(WORKERS, OWNERS, READS)
