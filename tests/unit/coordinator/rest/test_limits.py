"""A body larger than a chunk can be is refused before it is in memory; the longest honest message passes."""

import asyncio
import json

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from moerge_coordinator.rest.auth import Route
from moerge_coordinator.rest.limits import Bodies
from moerge_proto.contributions import NewContribution
from moerge_proto.experts import NewExpert, Parts
from moerge_proto.uploads import CHUNK_BYTES, MAX_CHUNK_BYTES, MAX_CHUNKS, Chunk, NewUpload


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


PARTS = Parts(expert="f" * 64, body="f" * 64, fitted=False)
EMOJI = "\N{GRINNING FACE}" * 200
LONGEST: list[BaseModel] = [
    NewUpload(sha256="f" * 64, size=2**37, chunks=[Chunk(sha256="f" * 64, size=CHUNK_BYTES)] * MAX_CHUNKS),
    NewContribution(sha256="f" * 64, supersedes=["f" * 64] * 10_000, software={f"{n:0200}": EMOJI for n in range(100)}),
    NewExpert(domain="law", parts=PARTS, files={f"{n:0255}": "f" * 64 for n in range(1000)}),
]


@pytest.mark.parametrize("message", LONGEST, ids=lambda message: type(message).__name__)
def test_the_longest_message_is_within_its_limit(message: BaseModel) -> None:
    """Escaped to ASCII, as some clients write JSON."""
    body = json.dumps(message.model_dump(mode="json")).encode()
    app, routes = FastAPI(), APIRouter(route_class=Route)

    def take(new: BaseModel) -> int:
        return len(new.model_dump_json())

    take.__annotations__["new"] = type(message)
    routes.post("/v1/x")(take)
    app.include_router(routes)

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post("/v1/x", content=body, headers={"Content-Type": "application/json"})

    assert asyncio.run(post()).status_code == 200
