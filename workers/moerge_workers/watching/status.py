"""The status of a home's worker: in memory for all views, and in a file of that home that is replaced whole."""

import math
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge_proto.progress import LONGEST, Obstacle, Progress, Stage

FILE = "status.json"
LOCK = "lock"


class SlotState(BaseModel):
    """A Ray actor: its device, and its rate over the last shards that it finished; 0 before the first."""

    device: str
    tokens_per_second: float = 0.0


class State(BaseModel):
    """The state of the worker, now or at its end.

    Attributes:
        at: when this was written.
        domain: that it contributes for.
        coordinator: its address.
        said: its last message.
        stage: what it does now.
        trunk: digest of the trunk that it contributes under.
        shards_done: of those that it computes now, or computed last.
        shards_total: likewise.
        tokens_left: in those that are not done.
        tokens: that it computed since it was started.
        slots: number -> the actor that computes there now.
        restarts: Ray actors that were lost, each of which another took the place of.
        sent: kind -> bytes of all that ever left this home, before they are compressed.
        heard: when the coordinator last answered.
        obstacle: why nothing more is sent for now.
        error: why it ended, if it failed.
    """

    at: datetime
    domain: str
    coordinator: str
    said: str = ""
    stage: Stage = Stage.STARTING
    trunk: str | None = None
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
        """Of all slots together."""
        return sum(slot.tokens_per_second for slot in self.slots.values())

    @property
    def seconds_left(self) -> int | None:
        """The estimate for the shards that are not done; None while there is none."""
        rate = self.tokens_per_second
        left = self.tokens_left / rate if rate else LONGEST + 1
        return round(left) if left <= LONGEST else None

    @property
    def progress(self) -> Progress:
        """The part that the coordinator may be told."""
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
    """A home's state. Any thread may read and change it."""

    def __init__(self, home: Path, domain: str, coordinator: str) -> None:
        self._path = home / FILE
        self.state = State(at=datetime.now(UTC), domain=domain, coordinator=coordinator)
        self._written = 0.0
        self._lock = threading.RLock()

    def update(self, **fields: Any) -> None:
        """Changes it, and writes the file."""
        with self._lock:
            self.note(seconds=0, **fields)

    def note(self, *, seconds: float = 1.0, **fields: Any) -> None:
        """Changes it; the file is written at most once in so many seconds."""
        with self._lock:
            self.state = self.state.model_copy(update={**fields, "at": datetime.now(UTC)})
            if time.monotonic() - self._written >= seconds:
                with atomic_file(self._path) as out:
                    out.write(self.state.model_dump_json(indent=1).encode())
                self._written = time.monotonic()

    def heard(self) -> None:
        """The coordinator answered. The file is left as it is: this may be another thread than the work's."""
        self.note(seconds=math.inf, heard=datetime.now(UTC))


def read_state(home: Path) -> State | None:
    """The last state; None if no worker ran here.

    Raises:
        MoergeError: the file is no state.
    """
    path = home / FILE
    try:
        return State.model_validate_json(path.read_bytes()) if path.is_file() else None
    except ValidationError as error:
        raise MoergeError("not a worker's state", where=str(path), todo="remove the file") from error


def is_running(home: Path) -> bool:
    """Whether a worker holds the home now."""
    if not (home / LOCK).is_file():
        return False
    try:
        with FileLock(home / LOCK, blocking=False):
            return False
    except Timeout:
        return True
