"""A failure of the coordinator's own."""

import asyncio
from pathlib import Path

import httpx
from sqlalchemy import select

from moerge_coordinator.bootstrap import make_app, make_state
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import AuditRow


def test_an_internal_failure_is_a_problem_and_is_audited(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    app, state = make_app(settings), make_state(settings)
    app.state.coordinator = state

    @app.post("/broken")
    def broken() -> None:
        raise KeyError("inner")

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
            return await client.post("/broken", headers={"X-Request-Id": "broken-1"})

    response = asyncio.run(call())
    assert (response.status_code, response.headers["X-Request-Id"]) == (500, "broken-1")
    assert (response.json()["type"], "inner" in response.text) == ("urn:moerge:problem:internal", False)
    with state.database.reading() as session:
        [row] = session.scalars(select(AuditRow))
    state.database.close()
    assert (row.request, row.status, row.problem) == ("broken-1", 500, "urn:moerge:problem:internal")
