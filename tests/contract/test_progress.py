"""Progress: one row for a domain, of its owner; and a coordinator that is away doesn't matter."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from moerge.errors import CoordinatorError
from moerge_proto.progress import Obstacle, Progress, Stage
from moerge_workers.policy import Policy
from moerge_workers.settings import Settings
from moerge_workers.watching.reporter import reporting
from moerge_workers.watching.status import SlotState, State, Status
from support.federation import Member, eventually, join
from support.processes import Coordinator, coordinator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("progress") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def members(server: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    made = [join(server, domain, tmp_path_factory.mktemp(domain)) for domain in ("law", "art")]
    yield made
    for member in made:
        member.client.close()


def progress(domain: str, done: int, total: int = 10) -> Progress:
    return Progress(
        domain=domain,
        stage=Stage.COMPUTING,
        shards_done=done,
        shards_total=total,
        tokens_per_second=1000,
        seconds_left=60,
    )


def test_the_last_word_of_each_domain_is_kept_and_an_owner_sees_its_own(
    server: Coordinator, members: list[Member]
) -> None:
    law, art = members
    law.client.tell_progress(progress("law", 1))
    art.client.tell_progress(progress("art", 5))
    told = law.client.tell_progress(progress("law", 2))
    assert list(law.client.progress()) == [told]
    assert (told.owner, told.shards_done) == ("law-owner", 2)
    with server.client() as operator:
        assert {each.domain: each.shards_done for each in operator.progress()} == {"law": 2, "art": 5}
        assert not [each for each in operator.audit() if each.path == "/v1/progress"]  # it would drown the rest


def test_progress_of_another_s_domain_or_more_than_all_is_refused(server: Coordinator, members: list[Member]) -> None:
    law, _ = members
    with pytest.raises(CoordinatorError) as refused:
        law.client.tell_progress(progress("art", 1))
    assert refused.value.type == "urn:moerge:problem:forbidden"
    headers = {"Authorization": f"Bearer {law.token}"}
    body = {**progress("law", 1).model_dump(), "shards_done": 11}
    response = httpx.put(f"{server.url}/v1/progress", headers=headers, json=body)
    assert response.status_code == 422
    assert "at most shards_total" in response.json()["detail"]


def settings_of(url: str, member: Member, folder: Path, *, dry_run: bool = False, told: bool | str = True) -> Settings:
    given = {"coordinator": url, "token": member.token, "domain": member.domain, "expert": folder, "data": ["x"]}
    return Settings.model_validate({**given, "home": folder, "dry_run": dry_run, "policy": {"progress": told}})


def test_law_1_progress_leaves_only_if_the_policy_says_so_and_never_in_a_dry_run(
    server: Coordinator, members: list[Member], tmp_path: Path
) -> None:
    _, art = members
    status = Status(tmp_path, "art", server.url)

    def done() -> list[int]:
        return [each.shards_done for each in art.client.progress()]

    before, threads = done(), set(threading.enumerate())
    for how in ({"told": False}, {"dry_run": True}):
        status.update(shards_done=7, shards_total=9)
        with reporting(settings_of(server.url, art, tmp_path, **how), status, 0.05):
            assert threads.issuperset(threading.enumerate())
        assert done() == before
    with reporting(settings_of(server.url, art, tmp_path), status, 0.05):
        eventually(lambda: done() == [7])
        status.update(shards_done=8)
        eventually(lambda: done() == [8])
        assert status.state.heard is not None
    assert [each.stage for each in art.client.progress()] == [Stage.ENDED]


def test_law_1_by_default_only_a_word_on_an_obstacle_leaves(
    server: Coordinator, members: list[Member], tmp_path: Path
) -> None:
    _, art = members
    status = Status(tmp_path, "art", server.url)
    status.update(stage=Stage.COMPUTING, shards_done=7, shards_total=9)
    before = list(art.client.progress())
    settings = settings_of(server.url, art, tmp_path)
    settings = settings.model_copy(update={"policy": Policy()})
    with reporting(settings, status, 0.05):
        pass
    assert list(art.client.progress()) == before

    def told() -> list[tuple[Obstacle | None, Stage, int, int]]:
        return [(each.obstacle, each.stage, each.shards_done, each.shards_total) for each in art.client.progress()]

    with reporting(settings, status, 0.05):
        status.update(obstacle=Obstacle.TRUNK_HARMS)
        eventually(lambda: told() == [(Obstacle.TRUNK_HARMS, Stage.WAITING, 0, 0)])
        status.update(obstacle=None)
        eventually(lambda: told() == [(None, Stage.WAITING, 0, 0)])
        status.update(obstacle=Obstacle.ASKS_OWNER)
    assert told() == [(Obstacle.ASKS_OWNER, Stage.WAITING, 0, 0)]


def test_a_coordinator_that_gives_no_answer_is_asked_again_and_fails_nothing(
    members: list[Member], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
        with reporting(settings_of(url, members[0], tmp_path), Status(tmp_path, "law", url), 0.05):
            for _ in range(3):
                place.accept()[0].close()
    with reporting(settings_of(url, members[0], tmp_path), status := Status(tmp_path, "law", url), 0.05):
        pass  # nobody is there
    assert status.state.heard is None


def test_rate_and_estimate_are_of_all_slots() -> None:
    state = State.model_validate({"at": "2026-01-01T00:00:00Z", "domain": "law", "coordinator": "", "tokens_left": 600})
    assert (state.tokens_per_second, state.seconds_left) == (0, None)
    slots = {0: SlotState(device="cpu", tokens_per_second=10), 1: SlotState(device="cpu", tokens_per_second=20)}
    state = state.model_copy(update={"slots": slots})
    assert (state.progress.tokens_per_second, state.progress.seconds_left) == (30, 20)
    assert state.model_copy(update={"tokens_left": 10**15}).seconds_left is None
