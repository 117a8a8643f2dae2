"""The coordinator's REST API, called in process with the visitor's token."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from moerge_proto.contributions import Contribution
from moerge_proto.evaluations import VersionTable
from moerge_proto.messages import Page
from moerge_proto.problems import Problem
from moerge_proto.versions import Version

M = TypeVar("M", bound=BaseModel)
_CONTRIBUTIONS = "/v1/contributions"
_MOST_PAGES = 100


class RestError(Exception):
    """The REST call was refused, or failed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class Rest:
    """Calls of one request to the dashboard, with its request id for the log and the audit log.

    Raises:
        RestError: the coordinator answers with a problem.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def send(
        self, method: str, path: str, message: BaseModel | None = None, parameters: Mapping[str, object] | None = None
    ) -> bytes:
        content = None if message is None else message.model_dump_json(exclude_unset=True)
        headers = {"Content-Type": "application/json"} if message is not None else {}
        asked = {name: "true" if value is True else str(value) for name, value in (parameters or {}).items() if value}
        answer = await self._client.request(method, path, content=content, headers=headers, params=asked)
        if answer.status_code >= 400:
            raise RestError(Problem.model_validate_json(answer.content))
        return answer.content

    async def get(self, kind: type[M], path: str) -> M:
        return kind.model_validate_json(await self.send("GET", path))

    async def find(self, kind: type[M], path: str) -> M | None:
        """The message, or None if not found."""
        try:
            return await self.get(kind, path)
        except RestError as error:
            if error.problem.status == 404:
                return None
            raise

    async def page(self, kind: type[M], path: str, parameters: Mapping[str, object] | None = None) -> Page[M]:
        content = await self.send("GET", path, parameters=parameters)
        return Page[kind].model_validate_json(content)  # type: ignore[valid-type]  # a generic built at run time

    async def all(self, kind: type[M], path: str) -> Sequence[M]:
        """Every page of a list, of at most 10 000 items."""
        found: list[M] = []
        after: int | None = 0
        for _ in range(_MOST_PAGES):
            if after is None:
                break
            page = await self.page(kind, path, {"after": after})
            found += page.items
            after = page.next
        return found

    async def each(self, kind: type[M], paths: Sequence[str]) -> list[M | None]:
        """Several messages concurrently; None if not found."""
        return await asyncio.gather(*(self.find(kind, path) for path in paths))

    async def tables(self, versions: Sequence[Version]) -> dict[int, VersionTable]:
        """The existing tables of these versions, by number."""
        tables = await self.each(VersionTable, [f"/v1/versions/{each.number}/table" for each in versions])
        return {table.version: table for table in tables if table is not None}

    async def contributions(self, after: str, kind: str) -> Page[Contribution]:
        return await self.page(Contribution, _CONTRIBUTIONS, {"after": after, "newest": True, "kind": kind})

    async def withdraw_contribution(self, digest: str) -> None:
        await self.send("POST", f"{_CONTRIBUTIONS}/{digest}/withdraw")


@asynccontextmanager
async def calls(app: FastAPI, token: str, request_id: str) -> AsyncIterator[Rest]:
    """A context with REST calls to `app` with a token."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {token}", "X-Request-Id": request_id}
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator", headers=headers) as client:
        yield Rest(client)
