"""Progress reports: visibility, policy, contents."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge.errors import CoordinatorError
from moerge_proto.progress import Obstacle, Progress, Stage
from moerge_workers.policy import Policy
from moerge_workers.settings import Settings
from moerge_workers.watching.reporter import reporting
from moerge_workers.watching.status import Status
from support.federation import Member, eventually, join
from support.processes import Coordinator


@pytest.fixture(scope="module")
def members(server: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    members = [join(server, domain, tmp_path_factory.mktemp(domain)) for domain in ("law", "art")]
    yield members
    for member in members:
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


def test_an_owner_sees_its_own_progress(server: Coordinator, members: list[Member]) -> None:
    law, art = members
    art.client.tell_progress(progress("art", 5))
    sent = law.client.tell_progress(progress("law", 2))
    assert list(law.client.progress()) == [sent]
    with server.client() as operator:
        assert {item.domain: item.shards_done for item in operator.progress()} == {"law": 2, "art": 5}
        assert not [item for item in operator.audit() if item.path == "/v1/progress"], "too frequent for the audit log"


def test_progress_of_another_s_domain_is_refused(members: list[Member]) -> None:
    with pytest.raises(CoordinatorError) as refused:
        members[0].client.tell_progress(progress("art", 1))
    assert refused.value.type == "urn:moerge:problem:forbidden"


def settings_of(url: str, member: Member, folder: Path, *, dry_run: bool = False, sent: bool = True) -> Settings:
    fields = {"coordinator": url, "token": member.token, "domain": member.domain, "expert": folder, "data": ["x"]}
    return Settings.model_validate({**fields, "home": folder, "dry_run": dry_run, "policy": {"progress": sent}})


def test_law_1_progress_is_sent_only_if_the_policy_allows(
    server: Coordinator, members: list[Member], tmp_path: Path
) -> None:
    _, art = members
    status = Status(tmp_path, "art", server.url)

    def done() -> list[int]:
        return [item.shards_done for item in art.client.progress()]

    before, threads = done(), set(threading.enumerate())
    for how in ({"sent": False}, {"dry_run": True}):
        status.update(shards_done=7, shards_total=9)
        with reporting(settings_of(server.url, art, tmp_path, **how), status, 0.05):
            assert threads.issuperset(threading.enumerate())
        assert done() == before
    with reporting(settings_of(server.url, art, tmp_path), status, 0.05):
        eventually(lambda: done() == [7])
        status.update(shards_done=8)
        eventually(lambda: done() == [8])
        assert status.state.heard is not None
    assert [item.stage for item in art.client.progress()] == [Stage.ENDED]


def test_law_1_by_default_only_obstacles_are_sent(server: Coordinator, members: list[Member], tmp_path: Path) -> None:
    _, art = members
    status = Status(tmp_path, "art", server.url)
    status.update(stage=Stage.COMPUTING, shards_done=7, shards_total=9)
    before = list(art.client.progress())
    settings = settings_of(server.url, art, tmp_path).model_copy(update={"policy": Policy()})
    with reporting(settings, status, 0.05):
        pass
    assert list(art.client.progress()) == before

    def seen() -> list[tuple[Obstacle | None, Stage, int, int]]:
        return [(item.obstacle, item.stage, item.shards_done, item.shards_total) for item in art.client.progress()]

    with reporting(settings, status, 0.05):
        status.update(obstacle=Obstacle.BODY_REFUSED)
        eventually(lambda: seen() == [(Obstacle.BODY_REFUSED, Stage.WAITING, 0, 0)])
        status.update(obstacle=None)
        eventually(lambda: seen() == [(None, Stage.WAITING, 0, 0)])
        status.update(obstacle=Obstacle.ASKS_OWNER)
    assert seen() == [(Obstacle.ASKS_OWNER, Stage.WAITING, 0, 0)]
