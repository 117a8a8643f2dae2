"""Faults in this process: a crash at any file operation or commit, a full disk, lost requests and answers."""

import errno
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import httpx
from sqlalchemy import Connection, Engine, event

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FILE_EVENTS = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree"}


class Crash(BaseException):
    """The end of the process. Like SIGKILL, nothing catches it."""


@dataclass(frozen=True)
class Fault:
    """The fault of one operation, at the `at`-th opportunity of its kind.

    crash, full: before a file operation below the coordinator's home, or a commit. before, after: a request or its
    answer is lost.
    """

    kind: Literal["crash", "full", "before", "after"]
    at: int


class Faults:
    """One per process: Python's audit hooks can't be removed."""

    def __init__(self) -> None:
        self._home = ""
        self._armed: Fault | None = None
        self._left = 0
        self._lock = threading.Lock()
        self._dead: WeakSet[threading.Thread] = WeakSet()
        self.crashed = threading.Event()
        self.hits = self.crashes = 0
        sys.addaudithook(self._on_audit)
        event.listen(Engine, "commit", self._on_commit)

    @contextmanager
    def during(self, fault: Fault | None, home: Path) -> Iterator[None]:
        """Arms the fault while the context is open."""
        with self._lock:
            self._home, self._armed, self._left = str(home), fault, fault.at if fault else 0
        try:
            yield
        finally:
            with self._lock:
                self._armed = None

    def bury(self) -> None:
        """Keeps every thread of the dead process dead."""
        with self._lock:
            self._dead.update(threading.enumerate())
            self._dead.discard(threading.current_thread())
            self.crashed.clear()

    def lost(self, kind: str) -> bool:
        """Tell whether this request, or its answer, gets lost."""
        with self._lock:
            return self._strikes({kind})

    def _strikes(self, kinds: set[str]) -> bool:
        if self._armed is None or self._armed.kind not in kinds:
            return False
        self._left -= 1
        if self._left > 0:
            return False
        self._armed = None
        self.hits += 1
        return True

    def _on_audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        if not self._home or (name != "open" and name not in _FILE_EVENTS):
            return
        if name == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITES):
            return
        if any(str(argument).startswith(self._home) for argument in arguments[:2]):
            self._chance(full=True)

    def _on_commit(self, connection: Connection) -> None:
        self._chance(full=False)

    def _chance(self, *, full: bool) -> None:
        thread = threading.current_thread()
        if thread in self._dead or (self.crashed.is_set() and thread is not threading.main_thread()):
            raise Crash
        with self._lock:
            kind = self._armed.kind if self._armed else ""
            if thread is threading.main_thread() or not self._strikes({"crash", "full"} if full else {"crash"}):
                return
            if kind == "crash":
                self.crashes += 1
                self.crashed.set()
        if kind == "crash":
            raise Crash
        raise OSError(errno.ENOSPC, "no space left on device (injected)")


class LossyTransport(httpx.BaseTransport):
    """HTTP that loses requests and answers."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._faults.lost("before"):
            raise httpx.ConnectError("lost on the way (injected)", request=request)
        crashes = self._faults.crashes
        try:
            if self._faults.crashed.is_set():
                raise httpx.ConnectError("the coordinator is dead", request=request)
            response = self._inner.handle_request(request)
        except httpx.ConnectError:
            time.sleep(0.02)  # instead of the longer and longer pauses between a user's attempts
            raise
        if self._faults.lost("after") or self._faults.crashes > crashes:  # the dead send no answer
            response.read()
            response.close()
            raise httpx.ReadError("answer lost (injected)", request=request)
        return response

    def close(self) -> None:
        self._inner.close()
