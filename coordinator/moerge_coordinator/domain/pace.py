"""The rate limit of each owner's chunks."""

import math
from collections.abc import Callable
from datetime import datetime

from moerge_coordinator.problems import RefusedError
from moerge_proto.problems import ProblemType


class Pace:
    """A token bucket for each owner, filled with `rate` bytes per second up to one second's worth.

    A chunk is accepted while the bucket is not empty; it may overdraw the bucket, which delays the next one.
    """

    def __init__(self, rate: int | None, clock: Callable[[], datetime]) -> None:
        self._rate, self._clock = rate, clock
        self._buckets: dict[str, tuple[float, datetime]] = {}

    def take(self, owner: str, size: int) -> None:
        """Takes `size` bytes from the owner's bucket.

        Raises:
            RefusedError: it is empty; has the time of the next attempt.
        """
        if self._rate is None:
            return
        now = self._clock()
        left, then = self._buckets.get(owner, (self._rate, now))
        left = min(self._rate, left + self._rate * max((now - then).total_seconds(), 0))
        if left <= 0:
            seconds = math.floor(-left / self._rate) + 1
            raise RefusedError(
                ProblemType.TOO_FAST,
                f"more than {self._rate} bytes per second",
                todo=f"continue in {seconds} s",
                retry_after=seconds,
            )
        self._buckets[owner] = left - size, now
