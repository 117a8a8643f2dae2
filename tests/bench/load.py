"""A coordinator under load, on loopback: many uploads at once, many contributions in a row."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from bench.measure import say
from bench.registry import Pair, benchmark
from moerge.errors import MoergeError
from moerge.progress import LogProgress
from moerge_proto.digests import sha256_hex
from moerge_proto.uploads import CHUNK_BYTES
from support.federation import federation_of, honest, join, send
from support.processes import coordinator, peak_bytes
from support.statistics import written

WORKERS, CHUNKS = 100, 2
CONTRIBUTIONS, SOME = 10_000, 1_000
SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


@benchmark(
    "load-uploads",
    f"memory of {WORKERS} simultaneous uploads",
    f"{WORKERS} chunks of 8 MiB",
    "<=",
    0.5,
    f"{WORKERS} workers, {CHUNKS} chunks of 8 MiB each, loopback, SQLite",
)
def load_uploads() -> list[Pair]:
    with tempfile.TemporaryDirectory() as place, coordinator(Path(place) / "home") as server:
        members = [join(server, f"domain-{number}", Path(place)) for number in range(WORKERS)]
        settled = peak_bytes(server, anew=True)
        failures: list[str] = []

        def upload(number: int) -> None:
            path = Path(place) / str(number)
            path.write_bytes(number.to_bytes(4) * (CHUNKS * CHUNK_BYTES // 4))
            try:
                members[number].client.upload(path, LogProgress(lambda line: None), title=str(number))
            except MoergeError as error:
                failures.append(f"worker {number}: {error}")
            path.unlink()

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(upload, range(WORKERS)))
        for member in members:
            member.client.close()
        if failures:
            raise RuntimeError(f"{len(failures)} of {WORKERS} uploads failed, such as {failures[0]}")
        return [(peak_bytes(server) - settled, WORKERS * CHUNK_BYTES)]


@cache
def in_a_row() -> tuple[list[float], list[int]]:
    """Seconds of every contribution; the coordinator's memory after the first SOME and after all."""
    seconds, memory = [], []
    with tempfile.TemporaryDirectory() as place, federation_of(Path(place), "law", **SMALL) as made:
        server, member = made.server, made.members["law"]
        manifest, sums = honest(server, member, made.body())
        for number in range(CONTRIBUTIONS):
            own = manifest.model_copy(update={"shards": [sha256_hex(number.to_bytes(8))]})
            path = written(Path(place) / "contribution", own, sums)
            begin = time.perf_counter()
            send(member, path)
            seconds.append(time.perf_counter() - begin)
            if number + 1 in (SOME, CONTRIBUTIONS):
                memory.append(peak_bytes(server))
            if (number + 1) % SOME == 0:
                say(f"  {number + 1} of {CONTRIBUTIONS} contributions, {sum(seconds[-SOME:]) / SOME * 1e3:.1f} ms each")
    return seconds, memory


SHAPES = f"{CONTRIBUTIONS} contributions of H 16, L 1, one after the other, loopback, SQLite"


@benchmark(
    "load-time", f"the last {SOME} contributions, s", f"the first {SOME}", "<=", 1.5, SHAPES, process="load-in-a-row"
)
def load_time() -> list[Pair]:
    seconds, _ = in_a_row()
    return [(sum(seconds[-SOME:]), sum(seconds[:SOME]))]


@benchmark(
    "load-memory",
    f"coordinator's memory after {CONTRIBUTIONS} contributions",
    f"after the first {SOME}",
    "<=",
    1.5,
    SHAPES,
    process="load-in-a-row",
)
def load_memory() -> list[Pair]:
    _, (first, last) = in_a_row()
    return [(float(last), float(first))]
