"""The owner rules what leaves: switches, questions and dry runs, seen from the coordinator's side."""

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from moerge.statistics.describe import describe
from moerge_proto.contributions import Kind
from moerge_proto.experts import ExpertState
from moerge_workers import commands
from moerge_workers.outgoing.history import History, Sending
from support.federation import federation_of, files_below
from support.models import expert
from support.processes import run_command
from support.worker import Worker, worker_of

ASK = {"mode": "ask", "head_contributions": False}
KILLED = """
import os, signal, sys
from moerge.client.client import Client
from moerge_workers.loop import run
from moerge_workers.settings import Settings
Client.upload = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
run(Settings.model_validate_json(sys.argv[1]))
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Worker]:
    """Nothing of the owner's has left."""
    with federation_of(tmp_path) as made:
        member = made.join("law", expert(tmp_path / "law", 1))
        with worker_of(made.server, member, tmp_path, made.seed) as owner:
            owner.write("a.jsonl", 0, 150)
            yield owner


def seen(owner: Worker) -> tuple[object, ...]:
    """All that the coordinator has of the owner."""
    client = owner.member.client
    contributions = [row for kind in get_args(Kind) for row in client.contributions(kind)]
    rows = [*client.experts(), *contributions]
    return files_below(owner.server), [row.model_dump_json() for row in rows]


def sendings(owner: Worker) -> list[Sending]:
    with closing(History(owner.home)) as history:
        return history.sendings()


def worker(owner: Worker, command: str, *arguments: str) -> str:
    done = CliRunner().invoke(commands.app, [command, *arguments, "--home", str(owner.home)])
    assert done.exit_code == 0, done.output
    return done.output


def test_law_1_ask_mode_sends_nothing_before_owner_approval(owner: Worker) -> None:
    assert seen(owner)[1] == []
    before = seen(owner)
    assert owner.run(dry_run=True) == "ran"
    assert owner.run(policy=ASK) == "ran"
    assert seen(owner) == before
    assert "law: parts" in worker(owner, "status")
    assert "approved" in worker(owner, "approve")
    assert owner.run(policy=ASK) == "ran"
    [registered] = owner.member.client.experts()
    assert registered.state is ExpertState.READY
    before = seen(owner)
    assert owner.run(dry_run=True) == "ran"
    assert owner.run(policy=ASK) == "ran"
    assert seen(owner) == before
    with closing(History(owner.home)) as history:
        [asked] = history.asked()
    assert (asked.kind, asked.body) == ("router", registered.parts.body)
    assert any("What this reveals" in str(part) for part in describe(Path(asked.place)))
    assert owner.log().count("What this reveals") >= 2

    worker(owner, "refuse", asked.digest[:8])
    for mode in ("ask", "auto"):
        assert owner.run(policy={**ASK, "mode": mode}) == "ran"
    assert seen(owner) == before
    assert "you refused to send" in owner.log()
    assert len(sendings(owner)) == 2, "config and tokenizer, then the parts"

    worker(owner, "approve", asked.digest)
    given = json.dumps(owner.given(policy=ASK))
    died = run_command(given, script=KILLED)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert seen(owner) == before
    assert [sending.became for sending in sendings(owner)] == ["arrived", "arrived", ""]  # written down before it left
    assert owner.run(policy=ASK) == "ran"
    [sent] = owner.active()
    assert sent.digest == asked.digest
    assert [(sending.item.digest, sending.became) for sending in sendings(owner)][1:] == [
        (registered.digest, "arrived"),
        (asked.digest, "arrived"),
    ]
    assert asked.digest in worker(owner, "history")


def test_law_1_each_switch_keeps_its_kind_at_home(owner: Worker) -> None:
    before = seen(owner)
    assert "the policy forbids sending expert weights" in owner.run(policy={"expert_weights": False})
    assert seen(owner) == before
    assert owner.run(policy={"router_contributions": False}) == "ran"
    assert seen(owner) == before
    assert owner.run(policy={"head_contributions": False}) == "ran"
    assert [sending.item.kind for sending in sendings(owner)] == ["expert", "expert", "router"]
    assert owner.run() == "ran"
    assert [sending.item.kind for sending in sendings(owner)][3:] == ["head"]

    (owner.folder / "data" / "a.jsonl").unlink()
    owner.write("few.jsonl", 0, 40)
    active = owner.active()
    assert "the policy's min_documents is 100" in owner.run(home=str(owner.folder / "other"))
    assert owner.active() == active
