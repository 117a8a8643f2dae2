"""The status of a home's worker: in memory for all views, and in a file of the home, written atomically."""

import math
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import Timeout
from pydantic import BaseModel, ValidationError

from moerge.errors import MoergeError
from moerge.files import atomic_file, locked
from moerge_proto.progress import LONGEST, Obstacle, Progress, Stage

FILE = "status.json"
LOCK = "lock"


class SlotState(BaseModel):
    """A Ray actor: its device, and its rate over its last shards."""

    device: str
    tokens_per_second: float = 0.0


class State(BaseModel):
    """The worker's current or last state.

    Attributes:
        at: time of this state.
        said: the last message.
        body: digest of the current body.
        shards_done: finished shards of the current or last contribution, of `shards_total`.
        tokens_left: tokens of its unfinished shards.
        tokens: tokens computed since the start.
        slots: number -> the slot's current actor.
        restarts: Ray actors lost and replaced.
        sent: kind -> bytes ever sent from this home, uncompressed.
        heard: time of the coordinator's last answer.
        obstacle: reason for sending nothing.
        error: the error that ended the worker.
    """

    at: datetime
    domain: str
    coordinator: str
    said: str = ""
    stage: Stage = Stage.STARTING
    body: str | None = None
    shards_done: int = 0
    shards_total: int = 0
    tokens_left: int = 0
    tokens: int = 0
    slots: dict[int, SlotState] = {}
    restarts: int = 0
    sent: dict[str, int] = {}
    heard: datetime | None = None
    obstacle: Obstacle | None = None
    error: str | None = None

    @property
    def tokens_per_second(self) -> float:
        return sum(slot.tokens_per_second for slot in self.slots.values())

    @property
    def seconds_left(self) -> int | None:
        """An estimate for the unfinished shards; None: unknown."""
        rate = self.tokens_per_second
        left = self.tokens_left / rate if rate else LONGEST + 1
        return round(left) if left <= LONGEST else None

    @property
    def progress(self) -> Progress:
        """The part for the coordinator."""
        return Progress(
            domain=self.domain,
            stage=self.stage,
            shards_done=self.shards_done,
            shards_total=self.shards_total,
            tokens_per_second=round(self.tokens_per_second),
            seconds_left=self.seconds_left,
            obstacle=self.obstacle,
        )


class Status:
    """A home's state, for any thread; without a home it has no file."""

    def __init__(self, home: Path | None, domain: str, coordinator: str) -> None:
        self._path = home and home / FILE
        self.state = State(at=datetime.now(UTC), domain=domain, coordinator=coordinator)
        self._written = 0.0
        self._lock = threading.Lock()

    def update(self, **fields: Any) -> None:
        """Change the state, and write the file."""
        self.note(seconds=0, **fields)

    def note(self, *, seconds: float = 1.0, **fields: Any) -> None:
        """Change the state; write the file at most once in so many seconds."""
        with self._lock:
            self.state = self.state.model_copy(update={**fields, "at": datetime.now(UTC)})
            if self._path is not None and time.monotonic() - self._written >= seconds:
                with atomic_file(self._path) as out:
                    out.write(self.state.model_dump_json(indent=1).encode())
                self._written = time.monotonic()

    def heard(self) -> None:
        """Record an answer of the coordinator. Doesn't write the file, because the caller may be another thread."""
        self.note(seconds=math.inf, heard=datetime.now(UTC))


def read_state(home: Path) -> State | None:
    """The last state; None if no worker ran here."""
    path = home / FILE
    try:
        return State.model_validate_json(path.read_bytes()) if path.is_file() else None
    except ValidationError as error:
        raise MoergeError("not a worker's state", where=str(path), todo="remove the file") from error


def is_running(home: Path) -> bool:
    if not (home / LOCK).is_file():
        return False
    try:
        with locked(home / LOCK):
            return False
    except Timeout:
        return True
