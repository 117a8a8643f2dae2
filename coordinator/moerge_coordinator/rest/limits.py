"""The largest body of any request."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moerge_proto.uploads import MAX_CHUNK_BYTES


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
