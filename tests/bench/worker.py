"""A worker's Ray actors compared with the same pass without Ray, and the overhead of a thousand small shards."""

import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from bench import ours
from bench.inputs import Shape, experts
from bench.measure import in_turns, say, seconds
from bench.registry import Pair, benchmark
from moerge.documents import shards as plans
from moerge.documents.shards import Shard, enough
from moerge.models.tokens import Tokens, all_counted
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.journal import Journal
from moerge.statistics.passes import Pass, RouterPass
from moerge.statistics.streamed import Streamed
from moerge.statistics.windows import Done, Window, computed
from moerge_proto.statistics_file import Manifest, RouterManifest, StatisticsSettings
from moerge_workers.computing import pending
from moerge_workers.computing.actors import Slots
from moerge_workers.data.documents import Data
from moerge_workers.outgoing.ledger import Ledger
from moerge_workers.policy import Policy
from moerge_workers.settings import Settings
from moerge_workers.watching.events import ActorEvents, Events
from moerge_workers.watching.status import Status
from moerge_workers.watching.view import Lines
from support.models import texts

SHAPE, SHARDS, RUNS = Shape(hidden=256, layers=6, intermediate=1024, vocabulary=4000), 4, 3
SETTINGS = StatisticsSettings()
ROWS = enough(SHAPE.hidden) // SETTINGS.context
SHAPES = f"{SHAPE}, {SHARDS} shards of {enough(SHAPE.hidden):,} tokens, one thread each, float32"
SMALL_TOKENS, DOCUMENTS = 1, 6000  # a shard's tokens, in units of H; documents of 50 tokens


def work() -> RouterPass:
    return ours.router_pass(experts(SHAPE, 1)[0])


def shard(number: int, rows: int = ROWS) -> Shard:
    generator = torch.Generator().manual_seed(number)
    ids: list[list[int]] = torch.randint(256, (rows, SETTINGS.context), generator=generator).tolist()
    return Shard(str(number), all_counted(ids), rows)


class Ready(ActorEvents):
    """The slots whose actors are ready."""

    def __init__(self) -> None:
        self.slots: set[int] = set()

    def ready(self, slot: int, device: str) -> None:
        self.slots.add(slot)


def with_ray(slots: int, shards: Sequence[Shard], folder: Path) -> float:
    """Seconds for the shards, each in a window of its own, once all actors are ready."""
    ready, begin, end = Ready(), 0.0, 0.0

    def window(own: Shard) -> Window:
        return Window([own], [frozenset({own.name})] * SHAPE.layers, folder / own.name, "work", inf)

    def source() -> Iterator[Window]:
        nonlocal begin
        while len(ready.slots) < slots:
            yield window(Shard("warm", [Tokens([0] * 16)], 1))
        begin = time.perf_counter()
        yield from map(window, shards)

    for _ in Slots(None, slots, SETTINGS, say, ready).compute(work(), source()):
        end = time.perf_counter()
    return end - begin


def against_no_ray(slots: int) -> list[Pair]:
    torch.set_num_threads(1)
    streamed, given = Streamed(work(), SETTINGS.batch_tokens), [shard(number) for number in range(SHARDS)]

    def without() -> float:
        return sum(seconds(partial(ours.statistics_pass, streamed, [item])) for item in given)

    with tempfile.TemporaryDirectory() as place:
        return in_turns(lambda: with_ray(slots, given, Path(place)), without, RUNS)


@benchmark("ray-one", "pass of one Ray actor, tokens/s", "the same pass without Ray", ">=", 0.95, SHAPES)
def ray_one() -> list[Pair]:
    return against_no_ray(1)


@benchmark("ray-two", "pass of two Ray actors, tokens/s", "the same pass without Ray, one thread", ">=", 1.7, SHAPES)
def ray_two() -> list[Pair]:
    return against_no_ray(2)


class Stopwatch:
    """Seconds of planning, journal and sums."""

    spent = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.spent += time.perf_counter() - start


class TimedData(Data):
    watch: Stopwatch

    def shards(self, *given: Any, **options: Any) -> Iterator[Shard]:
        result, more = super().shards(*given, **options), True
        while more:
            with self.watch.running():
                item = next(result, None)
            more = item is not None
            if item is not None:
                yield item


class TimedJournal(Journal):
    watch: Stopwatch

    def add(self, layer: int, shards: Collection[str], sums: ShardSums) -> None:
        with self.watch.running():
            super().add(layer, shards, sums)

    def join(self) -> Manifest:
        with self.watch.running():
            return super().join()


@benchmark(
    "small-shards",
    "planning, journal and sums of 1 000 small shards, s",
    "total time",
    "<=",
    0.05,
    f"{SHAPE}, shards of {SMALL_TOKENS * SHAPE.hidden} tokens, one thread, float32",
)
def small_shards() -> list[Pair]:
    plans.TOKENS_PER_HIDDEN = SMALL_TOKENS
    vars(pending)["Journal"] = TimedJournal
    watch, plus = Stopwatch(), ShardSums.__add__
    TimedData.watch = TimedJournal.watch = watch

    def add(one: ShardSums, other: ShardSums) -> ShardSums:
        with watch.running():
            return plus(one, other)

    def compute(own: Pass, given: Iterable[Window]) -> Iterator[Done]:
        return computed(own, given, SETTINGS.batch_tokens, 1)

    with tempfile.TemporaryDirectory() as place, patch.object(ShardSums, "__add__", add):
        folder, passed = Path(place), work()
        settings = Settings(
            coordinator="",
            token="",
            domain="law",
            expert=passed.expert.folder,
            data=[str(texts(folder / "texts.jsonl", 1, DOCUMENTS))],
            home=folder,
            policy=Policy(min_documents=1),
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
            body="0" * 64,
        )
        data, seen = TimedData(settings, passed.expert, say), Events(Status(folder, "law", ""), Lines())
        with closing(Ledger(folder / "ledger")) as ledger:
            whole = pending.PendingStatistics(settings, data, seen, compute, blank, passed, ledger)
            total = seconds(whole.complete)
        return [(watch.spent, total)]
