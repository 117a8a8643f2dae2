"""SIGKILL at any moment: a coordinator goes on, and the version is that of undisturbed runs."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.errors import CoordinatorError
from moerge_proto.bodies import NewBody
from moerge_proto.versions import NewVersion
from moerge_proto.workflows import Workflow, WorkflowState
from support.federation import federation_of
from support.processes import Coordinator

pytestmark = pytest.mark.slow

LARGE: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 8000}
KILLS = 4


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


def test_killed_coordinator_makes_the_same_version(tmp_path: Path) -> None:
    """Law 3 and 10. The kills are spread over the time that the work takes undisturbed."""
    with federation_of(tmp_path / "calm", "law", "art", **LARGE) as calm:
        merging = timed(calm.server, lambda client: client.merge_body(NewBody()))
        body = calm.body()
        calm.contribute(body)
        publishing = timed(calm.server, lambda client: client.solve_version(NewVersion()))
        expected = files_of(calm.server, 1)

    cuts = 0
    for kill in range(KILLS):
        with federation_of(tmp_path / f"kill-{kill}", "law", "art", **LARGE) as made:
            server, share = made.server, kill / KILLS
            cut, digest = killed_at(server, share * merging, lambda client: client.merge_body(NewBody()))
            assert digest == body.digest
            cuts += cut
            made.contribute(body)
            cut, number = killed_at(server, share * publishing, lambda client: client.solve_version(NewVersion()))
            cuts += cut
            assert number == "1"
            assert files_of(server, 1) == expected
            assert leftovers(server) == []
            with pytest.raises(CoordinatorError):
                made.operator.version(2)
    assert cuts >= KILLS // 2, f"only {cuts} of {2 * KILLS} kills hit running work"
