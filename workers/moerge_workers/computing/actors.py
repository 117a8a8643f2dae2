"""Ray actors: one per slot, each with the model and one thread."""

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import RayError, RayTaskError

from moerge.documents.shards import Shard
from moerge.errors import MoergeError
from moerge.memory.machine import is_out_of_memory
from moerge.memory.room import pass_too_large, room_on_device
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.estimate import largest
from moerge.statistics.passes import Pass, need_of
from moerge.statistics.streamed import Streamed
from moerge.statistics.windows import ComputeWindows, Done, Window
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.computing.cluster import cluster
from moerge_workers.computing.nodes import NodePass, not_started, require_folder
from moerge_workers.settings import Settings
from moerge_workers.watching.events import ActorEvents, Events

_DEATHS = 4  # in a row, of an actor and its replacements, before one returns sums
_LOOK_SECONDS = 2.0
_TELL_SECONDS = 60.0
_FULL = "the disk has no room for hidden states, so after a kill a window begins anew"


class Slot:
    """Computes windows, one at a time, layer by layer; runs as a Ray actor."""

    def __init__(self, work: Pass | NodePass, statistics: StatisticsSettings) -> None:
        self._work, self._statistics, self._device = work, statistics, work.device

    @cached_property
    def _streamed(self) -> Streamed:
        """Opened by the first call, because Ray turns a constructor's error into a text."""
        work = self._work.here() if isinstance(self._work, NodePass) else self._work
        room = room_on_device(need_of(work, self._statistics))
        return Streamed(work, self._statistics.batch_tokens, room=room)

    def place(self) -> tuple[str, str]:
        """(device, host) of the actor."""
        gpus = ray.get_gpu_ids() if self._device == "cuda" else []
        return ":".join([self._device, *map(str, gpus)]), socket.gethostname()

    def pace(self, shard: Shard) -> float:
        """Seconds of a token, measured with one layer of a shard."""
        return self._streamed.pace(shard)

    def begin(self, shards: Sequence[Shard], states: Path) -> int:
        """Start a window, from the file `states` of its hidden states if it exists; returns the next layer."""
        require_folder(states.parent)
        return self._streamed.begin(shards, states if states.is_file() else None)

    def sums(self, wanted: frozenset[str], ahead: frozenset[str] | None) -> ShardSums | None:
        """Compute the next layer; see `Streamed.sums`."""
        return self._streamed.sums(wanted, ahead)

    def save(self, states: Path, work: str) -> float | None:
        """Save the hidden states; returns the seconds that it took, None if the disk has no room."""
        begun = time.monotonic()
        return time.monotonic() - begun if self._streamed.save(states, work) else None


@dataclass(frozen=True)
class Slots:
    """The actors that compute windows.

    Attributes:
        address: of the owner's cluster; None starts a local one, with a CPU per slot.
        slots: number of actors. On GPUs each has its own.
        statistics: settings of the batches.
        say: receives messages about losses and delays.
        events: receives the actors' events.
    """

    address: str | None
    slots: int
    statistics: StatisticsSettings
    say: Callable[[str], None]
    events: ActorEvents = field(default_factory=ActorEvents)

    def compute(self, work: Pass, windows: Iterable[Window]) -> Iterator[Done]:
        """Every layer of each window, in any order of windows; one window per slot is in memory at a time.

        Each actor first computes one micro-batch of the largest shape. Windows of a dead actor or node are computed
        again, without the yielded layers. A lost Ray is started again.

        Raises:
            MoergeError: the model doesn't fit, actors die repeatedly, or the cluster doesn't exist.
        """
        source, more, again = iter(windows), True, deque[Window]()
        with cluster(self.address, self.slots) as connect:
            pool = _Pool(self, work, again, connect)
            while True:
                while pool.free and (more or again):
                    window = again.popleft() if again else next(source, None)
                    if window is None:
                        more = False
                    else:
                        pool.give(window)
                if not (more or again or pool.running):
                    return
                if (done := pool.next()) is None:
                    continue
                yield done
                pool.kept(done)

    def probe(self, work: Pass) -> float:
        """Start Ray and all actors; each computes one layer of a micro-batch of the largest shape, sums included.

        Returns:
            Tokens per second of all together, through all layers.

        Raises:
            MoergeError: as in `compute`.
        """
        with cluster(self.address, self.slots) as connect:
            pool = _Pool(self, work, deque(), connect)
            while pool.starting:
                pool.next()
            return sum(1 / seconds for seconds in pool.paces.values())


def on_ray(settings: Settings, events: Events) -> ComputeWindows:
    """The function that computes a worker's windows on Ray actors."""
    return Slots(settings.ray_address, settings.slots, settings.statistics, events.say, events).compute


def _alive() -> bool:
    """Tell whether any node of the cluster is alive. Ray needs some ten seconds to notice a lost node."""
    return any(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]


class _Actor:
    """An actor in a slot; `deaths`: of its predecessors, since the slot last gave sums."""

    def __init__(self, handle: Any, slot: int, deaths: int) -> None:
        self.handle, self.slot, self.deaths = handle, slot, deaths
        self.layer, self.saves = 0, False  # saves: whether hidden states are saved behind the layer

    def passed(self, *, summed: bool) -> None:
        """Note a layer. One without new sums was computed by a predecessor too, which died after it."""
        self.layer += 1
        if summed:
            self.deaths = 0


Call = Literal["pace", "begin", "sums", "save"]  # methods of `Slot`


class _Pool:
    """The actors of one cluster.

    Attributes:
        free: actors that can take a window.
        starting: number of actors still in their probe.
        running: windows in computation.
        paces: seconds of a token, by slot.
    """

    def __init__(self, how: Slots, work: Pass, again: deque[Window], connect: Callable[[], None]) -> None:
        self._how, self._work, self._again, self._connect = how, work, again, connect
        self._restarts, self._told, self._full = 0, time.monotonic(), False
        self.paces: dict[int, float] = {}
        self._saving: _Actor | None = None  # once the sums of its last layer are kept
        self._begin()

    def _begin(self) -> None:
        self.free: deque[_Actor] = deque()
        self._calls: dict[Any, tuple[_Actor, Call, Window | None]] = {}
        self._living: set[_Actor] = set()
        how = self._how
        self._sent = self._work if how.address is None else NodePass.of(self._work, how.statistics)
        for slot in range(self._how.slots):
            self._start(slot, 0)

    @property
    def starting(self) -> int:
        return sum(window is None for _, _, window in self._calls.values())

    @property
    def running(self) -> list[Window]:
        return [window for _, _, window in self._calls.values() if window is not None]

    def _start(self, slot: int, deaths: int) -> None:
        how = self._how
        gpus = 1 if self._work.device == "cuda" else 0
        kind: Any = ray.remote(
            num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )(Slot)
        actor = _Actor(kind.remote(self._sent, how.statistics), slot, deaths)
        self._living.add(actor)
        self._call(actor, "pace", None, largest(self._work, how.statistics))

    def _call(self, actor: _Actor, call: Call, window: Window | None, *given: object) -> None:
        self._calls[getattr(actor.handle, call).remote(*given)] = actor, call, window

    def _next_layer(self, actor: _Actor, window: Window) -> None:
        ahead = window.ahead(actor.layer)
        actor.saves = ahead is None
        self._call(actor, "sums", window, window.wanted[actor.layer], ahead)

    def give(self, window: Window) -> None:
        self._call(self.free.popleft(), "begin", window, window.shards, window.states)

    def next(self) -> Done | None:
        """A finished layer of a window, whose next one may already be in computation; None after another event."""
        done, _ = ray.wait(list(self._calls), num_returns=1, timeout=_LOOK_SECONDS)
        if not done:
            self._look()
            return None
        actor, call, window = self._calls.pop(done[0])
        try:
            result = ray.get(done[0])
            if window is None:
                self._ready(actor)
        except RayTaskError as error:
            raise self._failure(error) from error
        except RayError as error:
            if window is not None:
                self._again.append(window)
            self._replace(actor, error)
            return None
        self._told = time.monotonic()
        if window is None:
            self.paces[actor.slot] = result
            self.free.append(actor)
            return None
        if call == "sums":
            return self._summed(actor, window, result)
        if call == "begin":
            actor.layer = result
        else:
            window.note_saved(result or 0.0)
            if result is None and not self._full:
                self._full = True
                self._how.say(f"{_FULL}: {window.states.parent}")
        self._next_layer(actor, window)
        return None

    def _summed(self, actor: _Actor, window: Window, sums: ShardSums | None) -> Done:
        done = Done(window, actor.layer, sums)
        actor.passed(summed=sums is not None)
        if sums is not None:
            self._restarts = 0
        share = [done.tokens * layer // window.layers for layer in (done.layer, actor.layer)]
        self._how.events.finished(actor.slot, share[1] - share[0])
        if actor.layer == window.layers:
            self.free.append(actor)
        elif actor.saves:
            self._saving = actor
        else:
            self._next_layer(actor, window)
        return done

    def kept(self, done: Done) -> None:
        """Continue after the caller has kept the sums of a layer."""
        window = done.window
        window.wanted[done.layer] = frozenset()
        if done.layer + 1 == window.layers:
            window.states.unlink(missing_ok=True)
        elif self._saving is not None:
            self._call(self._saving, "save", window, window.states, window.work)
            self._saving = None

    def _ready(self, actor: _Actor) -> None:
        device, host = ray.get(actor.handle.place.remote())
        self._how.events.ready(actor.slot, device if self._how.address is None else f"{device} of {host}")

    def _failure(self, error: RayTaskError) -> Exception:
        cause = error.cause
        if isinstance(cause, MoergeError):
            return cause
        return self._too_large(str(cause)) if is_out_of_memory(cause) else error

    def _too_large(self, fault: str) -> MoergeError:
        statistics, slots = self._how.statistics, self._how.slots
        return pass_too_large(need_of(self._work, statistics), statistics, slots, fault=fault)

    def _replace(self, actor: _Actor, error: RayError) -> None:
        """Replace a lost actor, or restart if Ray is lost."""
        if actor not in self._living:
            return
        if (failure := not_started(error)) is not None:
            raise failure from error
        if (cause := error.__cause__ or getattr(error, "cause", None)) is not None and is_out_of_memory(cause):
            raise self._too_large(str(cause)) from error
        self._living.remove(actor)
        self.free = deque(item for item in self.free if item is not actor)
        self._how.events.lost(actor.slot)
        ray.kill(actor.handle)
        if not _alive():
            self._restart()
            return
        if actor.deaths + 1 >= _DEATHS:
            raise self._too_large(f"{_DEATHS} Ray actors in a row were killed before one finished a layer") from error
        self._how.say("a Ray actor was lost; a new one goes on with its window")
        self._start(actor.slot, actor.deaths + 1)

    def _look(self) -> None:
        if not _alive():
            self._restart()
        elif time.monotonic() - self._told >= _TELL_SECONDS and self.starting:
            self._told = time.monotonic()
            slots, cpus = self._how.slots, ray.available_resources().get("CPU", 0)  # type: ignore[no-untyped-call]
            self._how.say(f"{self.starting} of {slots} Ray actors are still starting; Ray has {cpus:g} free CPUs")

    def _restart(self) -> None:
        self._restarts += 1
        if self._restarts >= _DEATHS:
            raise self._too_large(f"Ray died {_DEATHS} times in a row before it finished a layer")
        self._how.say("Ray was lost; starting it again, and going on with the unfinished windows")
        for actor in self._living:
            self._how.events.lost(actor.slot)
        self._again.extend(self.running)
        ray.shutdown()
        self._connect()
        self._begin()
