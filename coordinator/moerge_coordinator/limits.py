"""How much and how fast: the pace of each owner's chunks, and the largest body of any request."""

import math
from datetime import datetime

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moerge_coordinator import tables
from moerge_coordinator.refusals import RefusedError
from moerge_proto.problems import ProblemType
from moerge_proto.uploads import MAX_CHUNK_BYTES


class Pace:
    """A token bucket for each owner, filled with `rate` bytes per second up to one second's worth.

    A chunk is let in while the bucket holds anything; what it takes beyond that is waited for before the next one.
    """

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._buckets: dict[str, tuple[float, datetime]] = {}

    def take(self, owner: str, size: int) -> None:
        """Takes `size` bytes from the owner's bucket.

        Raises:
            RefusedError: it is empty; says when to come again.
        """
        if self._rate is None:
            return
        now = tables.now()
        left, then = self._buckets.get(owner, (self._rate, now))
        left = min(self._rate, left + self._rate * max((now - then).total_seconds(), 0))
        if left <= 0:
            seconds = math.floor(-left / self._rate) + 1
            raise RefusedError(
                ProblemType.TOO_FAST,
                f"more than {self._rate} bytes per second",
                todo=f"go on in {seconds} s",
                retry_after=seconds,
            )
        self._buckets[owner] = left - size, now


class BodyLimit:
    """Refuses bodies larger than a chunk can be, with 413, before they are in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        come = 0

        async def counted() -> Message:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > MAX_CHUNK_BYTES:
                raise HTTPException(413, f"the body has more than {MAX_CHUNK_BYTES} bytes")
            return message

        await self._app(scope, counted, send)
