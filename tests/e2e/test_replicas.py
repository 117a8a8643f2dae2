"""SIGKILL of the coordinator that runs the workflows: another goes on, and the bytes are the same."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moerge.blobs.local import LocalBlobs
from moerge.blobs.s3 import S3Blobs
from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.errors import CoordinatorError
from moerge_proto.bodies import Body
from moerge_proto.versions import NewVersion
from moerge_proto.workflows import Workflow, WorkflowState
from support.federation import Member, federation_of, honest, joined, send
from support.processes import Coordinator
from support.replicas import Replicas, replicas_of
from support.servers import Postgres
from support.statistics import written

pytestmark = pytest.mark.slow

LARGE: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 8000}
KILLS = 2


def furnish(server: Coordinator, folder: Path) -> list[Member]:
    return [joined(server, domain, folder, seed, **LARGE) for seed, domain in enumerate(("law", "art"), start=1)]


def contribute(server: Coordinator, members: list[Member], body: Body, folder: Path) -> None:
    for member in members:
        with server.client(member.token) as client:
            there = replace(member, client=client)
            send(there, written(folder / "contribution", *honest(server, there, body)))


def timed(server: Coordinator, ask: Callable[[Client], Workflow]) -> float:
    with server.client() as client:
        begin = time.monotonic()
        wait(client, ask(client))
        return time.monotonic() - begin


def versions_of(server: Coordinator) -> list[dict[str, str]]:
    with server.client() as operator:
        return [{file.name: file.sha256 for file in version.files} for version in operator.versions()]


def killed_at(replicas: Replicas, delay: float, ask: Callable[[Client], Workflow]) -> tuple[bool, str]:
    """Asks a follower for work, kills the leader `delay` seconds later, and waits for the result, which it returns.

    Also returns whether the work was cut. The killed one is started again afterwards.
    """
    leader, follower = replicas.led(), replicas.follower()
    with follower.client() as client:
        id_ = ask(client).id
        time.sleep(delay)
        cut = client.workflow(id_).state is WorkflowState.RUNNING
        leader.kill()
        replicas.led(leader)
        result = wait(client, client.workflow(id_))
    leader.start()
    return cut, result


def test_version_is_unchanged_after_the_leader_is_killed(tmp_path: Path, postgres: Postgres, s3_server: str) -> None:
    """Law 3 and 4. The kills are spread over the time that the work takes undisturbed."""
    with federation_of(tmp_path / "calm", "law", "art", **LARGE) as calm:
        body = calm.body()
        calm.contribute(body)
        calm.solve()
        [expected] = versions_of(calm.server)
        blobs = set(LocalBlobs(calm.server.home / "blobs").digests())
    cuts = 0
    publishing = 0.0
    for kill in range(-1, KILLS):  # the first one, undisturbed, tells how long the work takes
        folder = tmp_path / f"kill-{kill}"
        folder.mkdir()
        with replicas_of(folder, 3, postgres, s3_server) as replicas:
            server = replicas.follower()
            members = furnish(server, folder)
            for member in members:
                member.client.close()
            if kill < 0:
                contribute(server, members, body, folder)
                publishing = timed(server, lambda client: client.solve_version(NewVersion()))
            else:
                share = (kill + 0.5) / KILLS
                contribute(replicas.follower(), members, body, folder)
                cut, number = killed_at(replicas, share * publishing, lambda client: client.solve_version(NewVersion()))
                assert number == "1"
                cuts += cut
            for item in replicas.servers:
                assert versions_of(item) == [expected]
                with item.client() as client, pytest.raises(CoordinatorError):
                    client.version(2)
                with item.client() as client:
                    assert list(client.bodies()) == [client.current_body()]
            found = set(S3Blobs(replicas.place, folder / "look", 0).digests())
            assert len(found - blobs) == len(blobs - found) == 2, "ECDSA of signature and provenance is randomised"
    assert cuts >= KILLS // 2, f"only {cuts} of {KILLS} kills hit running work"
