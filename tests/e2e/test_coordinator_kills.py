"""SIGKILL at any moment: a coordinator goes on, and the version is that of undisturbed runs."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.client.pull import pull
from moerge.client.signatures import verify_folder
from moerge.errors import CoordinatorError
from moerge_proto.bodies import HeadMethod
from moerge_proto.experts import ExpertState
from moerge_proto.owners import NewToken, Role
from moerge_proto.versions import NewVersion
from moerge_proto.workflows import Workflow, WorkflowState
from support.federation import SILENT, Federation, federation_of
from support.processes import Coordinator

pytestmark = pytest.mark.slow

LARGE: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 8000}
KILLS = 3
MEDIUM: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
HEADS: tuple[HeadMethod, ...] = ("regmean", "average", "seed")


def files_of(server: Coordinator, number: int | str) -> dict[str, str]:
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
        calm.contribute(calm.body())
        publishing = timed(calm.server, lambda client: client.solve_version(NewVersion()))
        expected = files_of(calm.server, 1)

    cuts = 0
    for kill in range(KILLS):
        with federation_of(tmp_path / f"kill-{kill}", "law", "art", **LARGE) as made:
            server, share = made.server, kill / KILLS
            made.contribute(made.body())
            cut, number = killed_at(server, share * publishing, lambda client: client.solve_version(NewVersion()))
            cuts += cut
            assert number == "1"
            assert files_of(server, 1) == expected
            assert leftovers(server) == []
            with pytest.raises(CoordinatorError):
                made.operator.version(2)
    assert cuts >= KILLS // 2, f"only {cuts} of {KILLS} kills hit running work"


def test_killed_coordinator_solves_after_a_leave_and_with_a_new_head_as_a_fresh_one(tmp_path: Path) -> None:
    """Laws 3, 5 and 10. The fresh one has the remaining expert alone."""

    def solves(head: HeadMethod) -> Callable[[Client], Workflow]:
        return lambda client: client.solve_version(NewVersion(head=head))

    with federation_of(tmp_path / "fresh", "law", **MEDIUM) as fresh:
        fresh.contribute(fresh.body())
        fresh.contribute_heads()
        seconds = [timed(fresh.server, solves(head)) for head in HEADS]
        expected = [files_of(fresh.server, number) for number in (1, 2, 3)]

    with federation_of(tmp_path / "killed", "law", "art", **MEDIUM) as made, ThreadPoolExecutor() as pool:
        made.contribute(made.body())
        made.contribute_heads()
        made.solve()
        leaving = pool.submit(made.members["art"].client.withdraw_expert, made.expert("art").digest)
        made.server.kill()
        made.server.start()
        assert leaving.result().expert.state is ExpertState.WITHDRAWN  # the client repeats a lost call
        results = [
            killed_at(made.server, share * undisturbed, solves(head))
            for share, undisturbed, head in zip((0, 0.4, 0.8), seconds, HEADS, strict=True)
        ]
        assert [number for _, number in results] == ["2", "3", "4"]
        assert [files_of(made.server, number) for number in (2, 3, 4)] == expected
        assert leftovers(made.server) == []
    assert any(cut for cut, _ in results), "the kills came too late to test anything"


def test_killed_coordinator_makes_each_part_once_and_the_readers_pulls_end(tmp_path: Path) -> None:
    """Laws 3 and 10. Each of three readers may use another two of three experts."""
    with federation_of(tmp_path / "calm", "law", "art", "code", **MEDIUM) as calm:
        names = [*_parted(calm)]
        publishing = timed(calm.server, lambda operator: operator.make_parts(1)[0])
        for workflow in calm.operator.make_parts(1):
            wait(calm.operator, workflow)
        expected = [files_of(calm.server, name) for name in names]

    with federation_of(tmp_path / "killed", "law", "art", "code", **MEDIUM) as made, ThreadPoolExecutor() as pool:
        tokens, cuts = _parted(made), 0
        assert [*tokens] == names
        for kill, (name, token) in enumerate(tokens.items()):
            with made.server.client(token) as reader:
                pulling = pool.submit(pull, reader, reader.version(1), tmp_path / name, SILENT)
                time.sleep((0.1 + kill / len(names)) * publishing)
                cuts += name not in {part.name for part in made.operator.version_parts(1) if part.made}
                made.server.kill()
                made.server.start()
                pulling.result()
            assert verify_folder(tmp_path / name, None, SILENT).name == name
        assert [files_of(made.server, name) for name in names] == expected
        assert [entry.name for entry in made.operator.log() if entry.kind == "version"] == ["1", *names]
        assert leftovers(made.server) == []
        assert ": 0 damaged, 0 litter" in made.moerge("coordinator", "verify", made.server.home)
    assert cuts >= KILLS // 2, f"only {cuts} of {len(names)} kills hit running work"


def _parted(federation: Federation) -> dict[str, str]:
    """Publishes version 1, each of whose experts one reader may not use; returns part -> its reader's token."""
    federation.contribute(federation.body())
    federation.solve()
    tokens = {
        name: federation.operator.add_token(NewToken(role=Role.READER, name=name)).secret
        for name in ("anna", "ben", "eve")
    }
    for member, without in zip(federation.members.values(), tokens, strict=True):
        for name in tokens.keys() - {without}:
            member.client.grant(member.domain, name)
    return {part.name: tokens[part.readers[0]] for part in federation.operator.version_parts(1)}
