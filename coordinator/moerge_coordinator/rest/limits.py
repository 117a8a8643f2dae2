"""Limits of request bodies: size and time."""

import asyncio
import time
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moerge_proto.contributions import NewContribution, Submission
from moerge_proto.evaluations import NewEvaluation
from moerge_proto.experts import NewExpert
from moerge_proto.uploads import MAX_CHUNK_BYTES, NewUpload

_FORM_BYTES, _JSON_BYTES = 2**18, 2**17
_LARGER: dict[Any, int] = {
    NewUpload: 2**21,  # 16384 chunks of 97 bytes
    NewContribution: 2**20,  # supersedes 10,000 contributions, of 67 bytes each
    Submission: 2**20,
    NewEvaluation: 2**20,  # a count of 14 bytes for each layer and expert, or 1000 results of some 900 bytes
    NewExpert: 2**19,  # 1000 files
}
"""Messages that can be longer than `_JSON_BYTES` -> maximum bytes of their JSON."""
_CONTAINERS = 2**15  # twice an upload's chunks; their number determines the time and memory of parsing
_SLOWEST = 4096  # bytes per second, on average


class _Limited(Request):
    """A request with a limit on JSON lists and objects, because parsing blocks the event loop."""

    async def json(self) -> Any:
        body = await self.body()
        if body.count(b"[") + body.count(b"{") > _CONTAINERS:
            raise HTTPException(413, f"the body has more than {_CONTAINERS} lists and objects")
        return await super().json()


def limited(request: Request, route: APIRoute) -> Request:
    """The request; a body beyond the maximum size of the route's message fails with 413."""
    field, come = route.body_field, 0
    most = MAX_CHUNK_BYTES if field is None else _LARGER.get(field.field_info.annotation, _JSON_BYTES)

    async def receive() -> Message:
        nonlocal come
        message = await request.receive()
        come += len(message.get("body", b""))
        _require_small(request.scope, come, most)
        return message

    return _Limited(request.scope, receive)


def _require_small(scope: Scope, come: int, most: int) -> None:
    announced = Headers(scope=scope).get("Content-Length", "")
    if come > most or (announced.isdecimal() and int(announced) > most):
        raise HTTPException(413, f"the body has more than {most} bytes")


class Bodies:
    """Refuses stalled bodies, and bodies slower than 4 KiB/s, with 408, and limits every body's bytes.

    An answer doesn't wait for the rest of the body. The connection closes later, after the rest or `seconds`; closing
    it immediately could lose the answer.

    Attributes:
        seconds: the longest pause between two pieces, and the maximum time of an empty body.
    """

    def __init__(self, app: ASGIApp, seconds: float = 30) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        whole = headers.get("Content-Length", "0") == "0" and "Transfer-Encoding" not in headers
        begin, come, last = time.monotonic(), 0, None
        most = MAX_CHUNK_BYTES if scope["path"].startswith("/v1/") else _FORM_BYTES

        async def piece(seconds: float) -> Message:
            nonlocal come, whole
            async with asyncio.timeout(seconds):
                message = await receive()
            come += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            return message

        async def timed() -> Message:
            if whole:
                return await receive()
            left = begin + self._seconds + come / _SLOWEST - time.monotonic()
            try:
                message = await piece(min(self._seconds, left))
            except TimeoutError as error:
                raise HTTPException(408, f"the body stopped after {come} bytes, or was too slow") from error
            _require_small(scope, come, most)
            return message

        async def rest(seconds: float) -> None:
            try:
                async with asyncio.timeout(seconds):
                    while not whole and come <= most:
                        await piece(seconds)
            except TimeoutError:
                pass

        async def answer(message: Message) -> None:
            nonlocal last
            if message["type"] == "http.response.start" and not whole:
                if "Expect" not in headers:
                    await rest(0)  # the received part
                if not whole:
                    MutableHeaders(scope=message)["Connection"] = "close"
            elif not whole and not message.get("more_body", False):
                last = {"type": "http.response.body", "body": b""}
                message = {**message, "more_body": True}
            await send(message)

        await self._app(scope, timed, answer)
        if last is not None:
            await rest(self._seconds)
            await send(last)
