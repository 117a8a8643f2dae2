"""The events of a run, for the view, the home's status, Prometheus and the coordinator."""

import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager

from moerge.progress import Tracker
from moerge_proto.progress import Obstacle, Stage
from moerge_workers.watching.status import SlotState, Status
from moerge_workers.watching.view import View

_SHARDS = 8  # of a slot's rate


class ActorEvents:
    """Receives the events of Ray actors, by slot number, and ignores them."""

    def ready(self, slot: int, device: str) -> None:
        """An actor is ready."""

    def finished(self, slot: int, tokens: int) -> None:
        """An actor finished that many tokens."""

    def lost(self, slot: int) -> None:
        """An actor is lost and will be replaced."""


class Events(ActorEvents):
    """Passes on the events of a run; called in the main thread.

    Attributes:
        status: keeps the figures.
        view: shows them, and the messages.
    """

    def __init__(self, status: Status, view: View) -> None:
        self.status, self.view = status, view
        self._finished: dict[int, deque[tuple[float, int]]] = {}

    def say(self, text: str) -> None:
        self.view.say(text)
        self.status.update(said=text)

    def track(self, title: str, total: int, unit: str) -> AbstractContextManager[Tracker]:
        """As `Progress.track`."""
        return self.view.track(title, total, unit)

    def enter(self, stage: Stage) -> None:
        if stage is not self.status.state.stage:
            self.status.update(stage=stage, slots={}, tokens_left=0)

    def hindered(self, obstacle: Obstacle | None) -> None:
        """Record the reason for sending nothing; None: no reason any more."""
        if obstacle is not self.status.state.obstacle:
            self.status.update(obstacle=obstacle)

    def sent(self, sizes: Mapping[str, int]) -> None:
        """Record kind -> bytes of all sent items."""
        self.status.note(sent=dict(sizes))

    def shards(self, done: int, total: int, tokens_left: int) -> None:
        seconds = 0.0 if done == total else 1.0
        self.status.note(seconds=seconds, shards_done=done, shards_total=total, tokens_left=tokens_left)

    def ready(self, slot: int, device: str) -> None:
        self._finished[slot] = deque([(time.monotonic(), 0)], maxlen=_SHARDS + 1)
        self._change(slot, SlotState(device=device))

    def finished(self, slot: int, tokens: int) -> None:
        times = self._finished[slot]
        times.append((time.monotonic(), tokens))
        seconds = max(times[-1][0] - times[0][0], 1e-9)
        rate = sum(count for _, count in list(times)[1:]) / seconds
        device = self.status.state.slots[slot].device
        self._change(slot, SlotState(device=device, tokens_per_second=rate), tokens=tokens)

    def lost(self, slot: int) -> None:
        slots = {number: state for number, state in self.status.state.slots.items() if number != slot}
        self.status.note(slots=slots, restarts=self.status.state.restarts + 1)

    def _change(self, slot: int, state: SlotState, tokens: int = 0) -> None:
        before = self.status.state
        self.status.note(slots={**before.slots, slot: state}, tokens=before.tokens + tokens)
