"""The coordinator's REST API, called in process with the visitor's token."""

import httpx
from anyio import from_thread
from fastapi import FastAPI

from moerge.client.client import Client


class _InProcess(httpx.BaseTransport):
    """Requests to an app from a thread that its event loop has started."""

    def __init__(self, app: FastAPI) -> None:
        self._app = httpx.ASGITransport(app=app, raise_app_exceptions=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return from_thread.run(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._app.handle_async_request(request)
        content = b"".join([part async for part in answer.aiter_raw()])
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)


def client_of(app: FastAPI, token: str, request_id: str) -> Client:
    """A client of `app` with a token, without retries; `request_id` is for the log and the audit log."""
    headers = {"X-Request-Id": request_id}
    return Client("http://localhost", token, patience=0, headers=headers, transport=_InProcess(app))
