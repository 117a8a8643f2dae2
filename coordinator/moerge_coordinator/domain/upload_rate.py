"""The rate limit of each owner's chunks."""

import math
from collections.abc import Callable
from datetime import datetime

from moerge_coordinator.problems import RefusedError
from moerge_proto.problems import ProblemType


class UploadRate:
    """A token bucket for each owner, filled with `rate` bytes per second up to one second's worth.

    A chunk is accepted while the bucket is not empty; it may overdraw the bucket, which delays the next one.
    """

    def __init__(self, rate: int | None, clock: Callable[[], datetime]) -> None:
        self._rate, self._clock = rate, clock
        self._buckets: dict[str, tuple[float, datetime]] = {}

    def take(self, owner: str, size: int) -> None:
        """Takes `size` bytes from the owner's bucket; the refusal of an empty one has the time of the next attempt."""
        if self._rate is None:
            return
        now = self._clock()
        left, then = self._buckets.get(owner, (self._rate, now))
        left = min(self._rate, left + self._rate * max((now - then).total_seconds(), 0))
        if left <= 0:
            seconds = math.floor(-left / self._rate) + 1
            problem, todo = f"more than {self._rate} bytes per second", f"continue in {seconds} s"
            raise RefusedError(ProblemType.TOO_FAST, problem, todo=todo, retry_after=seconds)
        self._buckets[owner] = left - size, now
