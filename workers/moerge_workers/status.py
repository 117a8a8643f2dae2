"""What a home's worker does, in a file of that home that is replaced whole."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from moerge.errors import MoergeError
from moerge.files import atomic_file

FILE = "status.json"
LOCK = "lock"


class State(BaseModel):
    """What the worker does now or did last.

    Attributes:
        at: when this was written.
        domain: that it contributes for.
        coordinator: its address.
        said: its last message.
        trunk: digest of the trunk that it contributes under.
        shards_done: of those that it computes now, or computed last.
        shards_total: likewise.
        error: why it ended, if it failed.
    """

    at: datetime
    domain: str
    coordinator: str
    said: str = ""
    trunk: str | None = None
    shards_done: int = 0
    shards_total: int = 0
    error: str | None = None


class Status:
    """Writes a home's state."""

    def __init__(self, home: Path, domain: str, coordinator: str) -> None:
        self._path = home / FILE
        self._state = State(at=datetime.now(UTC), domain=domain, coordinator=coordinator)
        self._shown = 0.0

    def update(self, **fields: Any) -> None:
        self._state = self._state.model_copy(update={**fields, "at": datetime.now(UTC)})
        with atomic_file(self._path) as out:
            out.write(self._state.model_dump_json(indent=1).encode())
        self._shown = time.monotonic()

    def shards(self, done: int, total: int) -> None:
        """Tells how far it is, at most once a second until it is done."""
        if done == total or time.monotonic() - self._shown >= 1:
            self.update(shards_done=done, shards_total=total)


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
