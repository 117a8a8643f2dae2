"""The demands on workers: calls that wait until they change, on a real server."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from signal import SIGTERM

import pytest

from moerge_proto.demands import LONGEST_WAIT, Demands
from support.federation import Federation, Member, federation_of
from support.processes import Coordinator, moerge
from support.uploads import RawClient

WORKERS = 60
SOON = 15
"""Seconds, far below a wait, in which an answer comes on a busy machine."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("demands"), "law", "art") as federation:
        yield federation


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WORKERS) as pool:
        yield pool


def demands(server: Coordinator, member: Member, seen: Demands | None = None, wait: int = 0) -> Demands:
    """One call of the member's worker."""
    query = f"expert={member.dense}&wait_s={wait}" + (f"&seen={seen.tag}" if seen else "")
    response = RawClient(server.url, member.token).request("GET", f"/demands?{query}")
    assert response.status_code == 200, response.text
    return Demands.model_validate_json(response.content)


def waiting(pool: ThreadPoolExecutor, server: Coordinator, member: Member, seen: Demands) -> Future[Demands]:
    """A call that waits as long as possible; it has been sent."""
    result = pool.submit(demands, server, member, seen, LONGEST_WAIT)
    time.sleep(0.5)
    assert not result.done()
    return result


def test_waiting_calls_hold_no_thread(federation: Federation, pool: ThreadPoolExecutor) -> None:
    """More calls wait than the server has threads for calls, and another one is answered before them."""
    server, law = federation.server, federation.members["law"]
    seen = demands(server, law)
    waits = [pool.submit(demands, server, law, seen, 10) for _ in range(WORKERS)]
    time.sleep(2)
    assert demands(server, law) == seen
    assert not any(item.done() for item in waits)
    assert all(item.result() == seen for item in waits)


def test_waiting_call_answers_at_a_new_body_and_a_new_version(federation: Federation, pool: ThreadPoolExecutor) -> None:
    server, (law, art) = federation.server, federation.members.values()
    seen = demands(server, law)
    assert seen == Demands.of(federation.body().digest, None)
    assert demands(server, law, seen, wait=1) == seen
    waits = waiting(pool, server, law, seen)
    body = federation.reseed()
    first = waits.result(SOON)
    assert (first.body, first.version) == (body.digest, None)
    federation.contribute(body, "law")
    waits, others = waiting(pool, server, law, first), waiting(pool, server, art, first)
    version = federation.solve(partial=True)
    assert waits.result(SOON) == Demands.of(body.digest, version.number)
    assert not others.done(), "the version has no expert of art"
    stranger = RawClient(server.url, art.token).request("GET", f"/demands?expert={law.dense}")
    assert stranger.json()["version"] is None, "another owner's expert"
    federation.operator.retire_version(version.number)
    assert demands(server, law) == first
    moerge("coordinator", "seed", server.home, federation.seed)
    assert others.result(SOON).body == seen.body, "the earlier seed's is current again"


def test_stop_of_the_coordinator_ends_waits_at_once(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with federation_of(tmp_path, "law") as made:
        law = made.members["law"]
        seen = demands(made.server, law)
        waits = waiting(pool, made.server, law, seen)
        made.server.send(SIGTERM)
        assert waits.result(SOON) == seen
        assert made.server.ended(SOON) == 0
