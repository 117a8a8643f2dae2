"""A worker's Ray actors compared with the same pass without Ray, and the overhead of a thousand small shards."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from bench.inputs import Shape, experts
from bench.measure import in_turns, say, seconds
from bench.registry import Pair, benchmark
from moerge.documents import shards as plans
from moerge.documents.shards import Shard, enough
from moerge.models.batches import batches
from moerge.models.tokens import Tokens, all_counted
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.journal import Journal
from moerge.statistics.passes import RouterPass
from moerge_proto.statistics_file import Manifest, RouterManifest, StatisticsSettings
from moerge_workers.computing import pending
from moerge_workers.computing.actors import Slots, on_ray
from moerge_workers.data.splits import Data
from moerge_workers.leaving.ledger import Ledger
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events
from moerge_workers.watching.status import Status
from moerge_workers.watching.view import Lines
from support.models import texts

SHAPE, SHARDS, RUNS = Shape(hidden=256, layers=6, intermediate=1024, vocabulary=4000), 4, 3
SETTINGS = StatisticsSettings()
ROWS = enough(SHAPE.hidden) // SETTINGS.context
SHAPES = f"{SHAPE}, {SHARDS} shards of {enough(SHAPE.hidden):,} tokens, one thread each, float32"
SMALL_TOKENS, DOCUMENTS = 1, 6000  # a shard's tokens, in units of H; documents of 50 tokens


def work() -> RouterPass:
    [folder] = experts(SHAPE, 1)
    return RouterPass(folder, folder, [16] * SHAPE.layers)


def shard(number: int, rows: int = ROWS) -> Shard:
    generator = torch.Generator().manual_seed(number)
    ids: list[list[int]] = torch.randint(256, (rows, SETTINGS.context), generator=generator).tolist()
    return Shard(str(number), all_counted(ids), rows)


def with_ray(slots: int) -> float:
    """Seconds for the shards, after every actor has loaded its model and computed a little."""
    given, begin, end = [shard(number) for number in range(SHARDS)], 0.0, 0.0

    def source() -> Iterator[Shard]:
        nonlocal begin
        yield from (Shard(f"warm {number}", [Tokens([0] * 16)], 1) for number in range(4 * slots))
        begin = time.perf_counter()
        yield from given

    for _ in Slots(None, slots, SETTINGS, say).compute(work(), source()):
        end = time.perf_counter()
    return end - begin


def against_no_ray(slots: int) -> list[Pair]:
    torch.set_num_threads(1)
    compute, given = work().load(), [shard(number) for number in range(SHARDS)]

    def without() -> float:
        return seconds(lambda: [compute(batches(each.rows, SETTINGS.batch_tokens), each.documents) for each in given])

    return in_turns(lambda: with_ray(slots), without, RUNS)


@benchmark("ray-one", "pass of one Ray actor, tokens/s", "the same pass without Ray", ">=", 0.95, SHAPES)
def ray_one() -> list[Pair]:
    return against_no_ray(1)


@benchmark("ray-two", "pass of two Ray actors, tokens/s", "the same pass without Ray, one thread", ">=", 1.7, SHAPES)
def ray_two() -> list[Pair]:
    return against_no_ray(2)


class Stopwatch:
    """Seconds outside the computation; `begin` is the time when reading the data began, or began again."""

    spent = 0.0
    begin = 0.0


class TimedData(Data):
    watch: Stopwatch

    def shards(self, *given: Any, **options: Any) -> Iterator[Shard]:
        found = super().shards(*given, **options)
        if options.get("again"):
            self.watch.begin = time.perf_counter() - self.watch.spent  # without Ray's start
        while True:
            start = time.perf_counter()
            each = next(found, None)
            self.watch.spent += time.perf_counter() - start
            if each is None:
                return
            yield each


class TimedJournal(Journal):
    watch: Stopwatch

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._adding = False

    def add(self, shard: str, sums: ShardSums) -> None:
        start, self._adding = time.perf_counter(), True
        super().add(shard, sums)
        self._adding = False
        self.watch.spent += time.perf_counter() - start

    def save(self) -> Manifest:
        start = time.perf_counter()
        manifest = super().save()
        self.watch.spent += 0 if self._adding else time.perf_counter() - start
        return manifest


@benchmark(
    "small-shards",
    "planning, journal and sums of 1 000 small shards, s",
    "total time without Ray's start",
    "<=",
    0.05,
    f"{SHAPE}, shards of {SMALL_TOKENS * SHAPE.hidden} tokens, one actor, float32",
)
def small_shards() -> list[Pair]:
    plans.TOKENS_PER_HIDDEN = SMALL_TOKENS
    vars(pending)["Journal"] = TimedJournal
    watch = TimedData.watch = TimedJournal.watch = Stopwatch()
    with tempfile.TemporaryDirectory() as place:
        folder, passed = Path(place), work()
        settings = Settings(
            coordinator="",
            token="",
            domain="law",
            expert=passed.expert,
            data=[str(texts(folder / "texts.jsonl", 1, DOCUMENTS))],
            home=folder,
        )
        blank = RouterManifest(
            owner="owner",
            expert="0" * 64,
            domain="law",
            settings=SETTINGS,
            hidden_size=SHAPE.hidden,
            layers=SHAPE.layers,
            exponents=list(passed.exponents),
            tokens=1,
            documents=1,
            shards=["0" * 64],
            trunk="0" * 64,
        )
        data, seen = TimedData(settings, say), Events(Status(folder, "law", ""), Lines())
        with closing(Ledger(folder / "ledger")) as ledger:
            compute = on_ray(settings, seen)
            pending.PendingStatistics(settings, data, seen, compute, blank, passed, ledger).complete()
        return [(watch.spent, time.perf_counter() - watch.begin)]
