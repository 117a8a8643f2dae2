"""SIGKILL at any moment: a coordinator goes on, and the version is that of undisturbed runs."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.errors import CoordinatorError
from moerge_proto.trunks import NewTrunk, Trunk
from moerge_proto.versions import NewVersion
from moerge_proto.workflows import Workflow, WorkflowState
from support.federation import Member, honest, joined, merge, send
from support.processes import Coordinator, coordinator
from support.statistics import written

pytestmark = pytest.mark.slow

LARGE: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 8000}
KILLS = 4


def furnish(server: Coordinator, folder: Path) -> list[Member]:
    return [joined(server, domain, folder, seed, **LARGE) for seed, domain in enumerate(("law", "art"), start=1)]


def contribute(server: Coordinator, members: list[Member], trunk: Trunk, folder: Path) -> None:
    for member in members:
        send(member, written(folder / "contribution", *honest(server, member, trunk)))
        member.client.close()


def files_of(server: Coordinator, number: int) -> dict[str, str]:
    with server.client() as operator:
        return {file.name: file.sha256 for file in operator.version(number).files}


def killed_at(server: Coordinator, delay: float, ask: Callable[[Client], Workflow]) -> tuple[bool, str]:
    """Asks for work, kills the coordinator `delay` seconds later, starts it again, and waits for the result.

    Returns whether the work was cut, and its result.
    """
    with server.client() as client:
        id_ = ask(client).id
        time.sleep(delay)
        cut = client.workflow(id_).state is WorkflowState.RUNNING
        server.kill()
    server.start()
    with server.client() as client:
        return cut, wait(client, client.workflow(id_))


def timed(server: Coordinator, ask: Callable[[Client], Workflow]) -> float:
    with server.client() as client:
        begin = time.monotonic()
        wait(client, ask(client))
        return time.monotonic() - begin


def leftovers(server: Coordinator) -> list[Path]:
    hidden = [path for place in ("versions", "experts") for path in (server.home / place).glob(".*")]
    return [*(server.home / "blobs" / "incoming").glob("*"), *hidden]


def test_a_coordinator_killed_in_merge_solve_or_publish_makes_the_undisturbed_version(tmp_path: Path) -> None:
    """Law 3 and 10. The kills are spread over the time that the work takes undisturbed."""
    with coordinator(tmp_path / "calm") as calm:
        members = furnish(calm, tmp_path)
        merging = timed(calm, lambda client: client.merge_trunk(NewTrunk()))
        trunk = merge(calm)
        contribute(calm, members, trunk, tmp_path)
        publishing = timed(calm, lambda client: client.solve_version(NewVersion()))
        expected = files_of(calm, 1)

    cuts = 0
    for kill in range(KILLS):
        folder = tmp_path / f"kill-{kill}"
        folder.mkdir()
        with coordinator(folder / "home") as server:
            members = furnish(server, folder)
            share = kill / KILLS
            cut, digest = killed_at(server, share * merging, lambda client: client.merge_trunk(NewTrunk()))
            assert digest == trunk.digest
            cuts += cut
            contribute(server, members, trunk, folder)
            cut, number = killed_at(server, share * publishing, lambda client: client.solve_version(NewVersion()))
            cuts += cut
            assert number == "1"
            assert files_of(server, 1) == expected
            assert leftovers(server) == []
            with server.client() as client, pytest.raises(CoordinatorError):
                client.version(2)
    assert cuts >= KILLS // 2, f"only {cuts} of {2 * KILLS} kills hit running work"
