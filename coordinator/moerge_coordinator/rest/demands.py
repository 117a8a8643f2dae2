"""The demands on workers, for calls that wait for a change: one reader of the database for all of them."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from moerge_coordinator.domain.demands import AllDemands
from moerge_proto.demands import Demands

_SECONDS = 0.5  # between two readings; another process may have written
_MOST_WAITS = 256  # of one owner; the next call is answered at once
_log = logging.getLogger("moerge.coordinator")


class Waits:
    """Waiting calls. They hold neither a thread nor a connection to the database.

    Attributes:
        read: reads the present demands.
    """

    def __init__(self, read: Callable[[], AllDemands]) -> None:
        self.read = read
        self._all = AllDemands(None, {})
        self._begun = 0.0  # of the last reading
        self._reading = asyncio.Lock()
        self._changed = asyncio.Event()  # replaced at each change
        self._waiting = Counter[str]()  # owner -> its waiting calls
        self._ended = False

    async def demands(self, owner: str, expert: str, seen: str | None, seconds: float) -> Demands:
        """The demands on an expert's worker, once their tag differs from `seen`, at most after so many seconds.

        A differing answer is never older than the call.
        """
        found = self._all.on(owner, expert)
        if found.tag != seen:
            await self._refresh()
            found = self._all.on(owner, expert)
        if self._waiting[owner] >= _MOST_WAITS:
            return found
        self._waiting[owner] += 1
        try:
            async with asyncio.timeout(seconds):
                while found.tag == seen and not self._ended:
                    await self._changed.wait()
                    found = self._all.on(owner, expert)
        except TimeoutError:
            pass
        finally:
            self._waiting[owner] -= 1
        return found

    async def follow(self, stopping: Callable[[], bool]) -> None:
        """Reads the demands at an interval while calls wait, until the coordinator stops; then ends all waits."""
        while not stopping():
            await asyncio.sleep(_SECONDS)
            if self._waiting.total():
                try:
                    await self._refresh()
                except (SQLAlchemyError, OSError):
                    _log.exception("failed; next attempt in %g s", _SECONDS)
        self._ended = True
        self._changed.set()

    async def _refresh(self) -> None:
        """Reads the demands, unless another call's reading has begun since this call."""
        asked = time.monotonic()
        async with self._reading:
            if self._begun >= asked:
                return
            begun = time.monotonic()
            found = await asyncio.to_thread(self.read)
            self._begun = begun
            if found != self._all:
                self._all, changed = found, self._changed
                self._changed = asyncio.Event()
                changed.set()
