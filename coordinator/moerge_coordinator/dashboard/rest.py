"""The coordinator's REST API, called in process with the visitor's token, or as the visitor whom a proxy signed in."""

import httpx
from anyio import from_thread
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from moerge.client.client import Client
from moerge_coordinator.person import PERSON
from moerge_proto.owners import Identity


class _InProcess(httpx.BaseTransport):
    """Requests to an app from a thread that its event loop has started."""

    def __init__(self, app: FastAPI, person: Identity | None) -> None:
        async def called(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, PERSON: person}, receive, send)

        self._app = httpx.ASGITransport(app=called, raise_app_exceptions=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return from_thread.run(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._app.handle_async_request(request)
        content = b"".join([part async for part in answer.aiter_raw()])
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)


def client_of(app: FastAPI, token: str | None, request_id: str, person: Identity | None = None) -> Client:
    """A client of `app` with a token, or for a person, without retries; `request_id` is for log and audit log."""
    headers = {"X-Request-Id": request_id}
    return Client("http://localhost", token, patience=0, headers=headers, transport=_InProcess(app, person))
