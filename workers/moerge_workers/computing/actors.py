"""Ray actors: one per slot, each with the model and one thread."""

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from moerge.documents.shards import Shard
from moerge.errors import MoergeError
from moerge.models.batches import batches
from moerge.models.tokens import Tokens
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.memory import is_out_of_memory, too_large
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.computing.cluster import cluster
from moerge_workers.computing.pending import ComputeShards
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events

_WAITING_PER_SLOT = 2
_DEATHS = 4  # in a row, of an actor and its replacements, before one finishes a shard
_LOOK_SECONDS = 2.0
_TELL_SECONDS = 60.0


class Slot:
    """Computes shards, one at a time. It has no state: each shard's sums are returned."""

    def __init__(self, work: RouterPass | TrunkPass, batch_tokens: int) -> None:
        import torch

        torch.set_num_threads(1)  # another number gives other integers
        self._compute, self._batch_tokens = work.load(), batch_tokens
        self._device = work.device

    def place(self) -> tuple[str, str]:
        """(device, host) of the actor."""
        gpus = ray.get_gpu_ids() if self._device == "cuda" else []
        return ":".join([self._device, *map(str, gpus)]), socket.gethostname()

    def sums(self, shard: Shard) -> ShardSums:
        return self._compute(batches(shard.rows, self._batch_tokens), shard.documents)


class ActorEvents(Protocol):
    """Receives events of actors, by slot number."""

    def ready(self, slot: int, device: str) -> None: ...
    def finished(self, slot: int, tokens: int) -> None: ...
    def lost(self, slot: int) -> None: ...


class _Ignored:
    """Ignores all events."""

    def ready(self, slot: int, device: str) -> None: ...
    def finished(self, slot: int, tokens: int) -> None: ...
    def lost(self, slot: int) -> None: ...


@dataclass(frozen=True)
class Slots:
    """The actors that compute shards, here or on the owner's own cluster.

    Attributes:
        address: the cluster's; None starts a local one, with a CPU per slot.
        slots: number of actors. On GPUs each has its own.
        statistics: settings of the batches.
        say: receives messages about losses and delays.
        events: receives the actors' events.
    """

    address: str | None
    slots: int
    statistics: StatisticsSettings
    say: Callable[[str], None]
    events: ActorEvents = field(default_factory=_Ignored)

    def compute(self, work: RouterPass | TrunkPass, shards: Iterable[Shard]) -> Iterator[tuple[Shard, ShardSums]]:
        """Every shard with its sums by a pass, in any order; a few per slot are in memory at a time.

        Each actor first computes one micro-batch of the largest shape. Other actors compute the shards of a dead actor
        or node again. A lost Ray is started again.

        Raises:
            MoergeError: the model doesn't fit, actors die repeatedly, or the cluster doesn't exist.
        """
        source, more, again = iter(shards), True, deque[Shard]()
        with cluster(self.address, self.slots) as connect:
            pool = _Pool(self, work, again, connect)
            while True:
                while pool.free and (more or again):
                    shard = again.popleft() if again else next(source, None)
                    if shard is None:
                        more = False
                    else:
                        pool.give(shard)
                if not (more or again or pool.running):
                    return
                if (done := pool.next()) is not None:
                    yield done

    def probe(self, work: RouterPass | TrunkPass) -> None:
        """Start Ray and all actors; each computes one micro-batch of the largest shape, sums included.

        Raises:
            MoergeError: as in `compute`.
        """
        with cluster(self.address, self.slots) as connect:
            pool = _Pool(self, work, deque(), connect)
            while pool.starting:
                pool.next()


def on_ray(settings: Settings, events: Events) -> ComputeShards:
    """The function that computes a worker's shards on Ray actors, by its settings."""
    return Slots(settings.ray_address, settings.slots, settings.statistics, events.say, events).compute


def _alive() -> bool:
    """Tell whether any node of the cluster is alive. Ray needs some ten seconds to notice a lost node."""
    return any(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]


class _Actor:
    """An actor in a slot; `deaths`: of its predecessors, since the slot last finished a shard."""

    def __init__(self, handle: Any, slot: int, deaths: int) -> None:
        self.handle, self.slot, self.deaths = handle, slot, deaths


class _Pool:
    """The actors of one cluster.

    Attributes:
        free: actors that can take a shard, once per shard.
        starting: actors still in their probe.
        running: shards in computation.
    """

    def __init__(
        self, how: Slots, work: RouterPass | TrunkPass, again: deque[Shard], connect: Callable[[], None]
    ) -> None:
        self._how, self._work, self._again, self._connect = how, work, again, connect
        self.running: dict[Any, tuple[_Actor, Shard]] = {}
        self._restarts, self._told = 0, time.monotonic()
        self._begin()

    def _begin(self) -> None:
        self.free: deque[_Actor] = deque()
        self.starting: dict[Any, _Actor] = {}
        self._living: set[_Actor] = set()
        for slot in range(self._how.slots):
            self._start(slot, 0)

    def _start(self, slot: int, deaths: int) -> None:
        how = self._how
        gpus = 1 if self._work.device == "cuda" else 0
        kind: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(Slot)
        actor = _Actor(kind.remote(self._work, how.statistics.batch_tokens), slot, deaths)
        self._living.add(actor)
        self.starting[actor.handle.sums.remote(_largest(how.statistics))] = actor

    def give(self, shard: Shard) -> None:
        actor = self.free.popleft()
        self.running[actor.handle.sums.remote(shard)] = actor, shard

    def next(self) -> tuple[Shard, ShardSums] | None:
        """A finished shard; None after another event or a timeout."""
        done, _ = ray.wait([*self.starting, *self.running], num_returns=1, timeout=_LOOK_SECONDS)
        if not done:
            self._look()
            return None
        started = self.starting.pop(done[0], None)
        actor, shard = (started, None) if started is not None else self.running.pop(done[0])
        try:
            sums: ShardSums = ray.get(done[0])
            if shard is None:
                self._ready(actor)
        except RayTaskError as error:
            raise self._failure(error) from error
        except RayError as error:
            if shard is not None:
                self._again.append(shard)
            self._replace(actor, error)
            return None
        self._told = time.monotonic()
        if actor in self._living:
            self.free += [actor] * (1 if shard is not None else _WAITING_PER_SLOT)
        if shard is None:
            return None
        actor.deaths = self._restarts = 0
        if actor in self._living:
            self._how.events.finished(actor.slot, shard.tokens)
        return shard, sums

    def _ready(self, actor: _Actor) -> None:
        device, host = ray.get(actor.handle.place.remote())
        self._how.events.ready(actor.slot, device if self._how.address is None else f"{device} of {host}")

    def _failure(self, error: RayTaskError) -> Exception:
        cause = error.cause
        if isinstance(cause, MoergeError):
            return cause
        return self._too_large(str(cause)) if is_out_of_memory(cause) else error

    def _too_large(self, found: str) -> MoergeError:
        return too_large(found, self._work, self._how.statistics, self._how.slots)

    def _replace(self, actor: _Actor, error: RayError) -> None:
        """Replace a lost actor, or restart if all of Ray is lost."""
        if actor not in self._living:
            return
        if (cause := error.__cause__ or getattr(error, "cause", None)) is not None and is_out_of_memory(cause):
            raise self._too_large(str(cause)) from error
        self._living.remove(actor)
        self.free = deque(each for each in self.free if each is not actor)
        self._how.events.lost(actor.slot)
        ray.kill(actor.handle)
        if not _alive():
            self._restart()
            return
        if actor.deaths + 1 >= _DEATHS:
            raise self._too_large(f"{_DEATHS} Ray actors in a row were killed before one finished a shard") from error
        self._how.say("a Ray actor was lost; a new one computes its shards again")
        self._start(actor.slot, actor.deaths + 1)

    def _look(self) -> None:
        if not _alive():
            self._restart()
        elif time.monotonic() - self._told >= _TELL_SECONDS and self.starting:
            self._told = time.monotonic()
            slots, cpus = self._how.slots, ray.available_resources().get("CPU", 0)  # type: ignore[no-untyped-call]
            self._how.say(f"{len(self.starting)} of {slots} Ray actors are still starting; Ray has {cpus:g} free CPUs")

    def _restart(self) -> None:
        self._restarts += 1
        if self._restarts >= _DEATHS:
            raise self._too_large(f"Ray died {_DEATHS} times in a row before it finished a shard")
        self._how.say("Ray was lost; starting it again, and computing the unfinished shards again")
        for actor in self._living:
            self._how.events.lost(actor.slot)
        self._again.extend(shard for _, shard in self.running.values())
        self.running.clear()
        ray.shutdown()
        self._connect()
        self._begin()


def _largest(settings: StatisticsSettings) -> Shard:
    rows = max(1, settings.batch_tokens // settings.context)
    return Shard("largest", [Tokens([0] * settings.context)] * rows, rows)
