"""Calls that wait for demands, on demands in memory."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from moerge_coordinator.domain.demands import AllDemands
from moerge_coordinator.rest import demands as module
from moerge_coordinator.rest.demands import Waits
from moerge_proto.demands import Demands

NONE = Demands.of(None, None)
LAW = "law-owner", "1" * 64


class Rows:
    """Demands that a test changes, and the number of their readings."""

    def __init__(self) -> None:
        self.body: str | None = None
        self.readings = 0

    def read(self) -> AllDemands:
        self.readings += 1
        return AllDemands(self.body, {})


async def following(rows: Rows, calls: int, then: Coroutine[Any, Any, None]) -> list[Demands]:
    """The answers of waiting calls while something happens."""
    waits = Waits(rows.read)
    stopping = asyncio.Event()
    task = asyncio.create_task(waits.follow(stopping.is_set))
    waiting = [asyncio.create_task(waits.demands(*LAW, NONE.tag, 30)) for _ in range(calls)]
    await then
    answers = await asyncio.gather(*waiting)
    stopping.set()
    await task
    return answers


def test_one_reading_serves_all_waiting_calls() -> None:
    rows, body = Rows(), "b" * 64

    async def change() -> None:
        await asyncio.sleep(0)
        rows.body = body

    assert set(asyncio.run(following(rows, 100, change()))) == {Demands.of(body, None)}
    assert rows.readings == 1


def test_differing_answer_is_not_older_than_the_call() -> None:
    rows = Rows()

    async def calls() -> Demands:
        waits = Waits(rows.read)
        assert await waits.demands(*LAW, None, 0) == NONE
        rows.body = "b" * 64
        return await waits.demands(*LAW, Demands.of("b" * 64, None).tag, 0)

    assert asyncio.run(calls()).body == "b" * 64


def test_calls_beyond_an_owner_s_limit_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITS", 2)

    async def calls() -> None:
        waits = Waits(Rows().read)
        first = [asyncio.create_task(waits.demands(*LAW, NONE.tag, 30)) for _ in range(2)]
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            assert await waits.demands(*LAW, NONE.tag, 30) == NONE
            assert await waits.demands("art-owner", "1" * 64, NONE.tag, 1) == NONE
        assert not any(task.done() for task in first)
        for task in first:
            task.cancel()

    asyncio.run(calls())


def test_stop_ends_all_waits() -> None:
    async def calls() -> None:
        waits, stopping = Waits(Rows().read), False
        task = asyncio.create_task(waits.follow(lambda: stopping))
        waiting = asyncio.create_task(waits.demands(*LAW, NONE.tag, 30))
        await asyncio.sleep(0)
        stopping = True
        async with asyncio.timeout(5):
            assert await waiting == NONE
            assert await waits.demands(*LAW, NONE.tag, 30) == NONE
            await task

    asyncio.run(calls())
