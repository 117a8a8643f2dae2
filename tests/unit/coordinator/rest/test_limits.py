"""A body larger than a chunk can be is refused before it is in memory."""

import asyncio

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from moerge_coordinator.rest.limits import Bodies
from moerge_proto.uploads import MAX_CHUNK_BYTES


def read(*pieces: bytes) -> int:
    """The bytes that an app behind the limit reads."""
    left, come = list(pieces), 0

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal come
        more = True
        while more:
            message = await receive()
            come, more = come + len(message["body"]), message["more_body"]

    async def send(message: Message) -> None:
        raise AssertionError("nothing is answered")

    scope = {"type": "http", "path": "/v1/x", "headers": [(b"transfer-encoding", b"chunked")]}
    asyncio.run(Bodies(app)(scope, receive, send))
    return come


def test_a_body_of_a_chunk_s_size_is_read() -> None:
    half = bytes(MAX_CHUNK_BYTES // 2)
    assert read(half, half) == 2 * len(half)


def test_the_piece_that_is_too_much_is_refused_with_413() -> None:
    with pytest.raises(HTTPException) as caught:
        read(bytes(MAX_CHUNK_BYTES), b"x", b"never read")
    assert caught.value.status_code == 413
