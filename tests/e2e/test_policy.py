"""The owner rules what leaves: switches, questions and dry runs, seen from the coordinator's side."""

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moerge.statistics.describe import describe
from moerge_proto.experts import ExpertState
from moerge_workers import commands
from moerge_workers.leaving.history import History, Sending
from support.fleet import eventually, files_below, join, merge
from support.house import House, house_of
from support.models import expert
from support.processes import coordinator, ended, run_command, start_worker

ASK = {"mode": "ask"}
KILLED = """
import os, signal, sys
from moerge.client.client import Client
from moerge_workers.loop import run
from moerge_workers.settings import Settings
Client.upload = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
run(Settings.model_validate_json(sys.argv[1]))
"""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """Nothing of the owner's has left."""
    with coordinator(tmp_path / "home") as server:
        member = join(server, "law", expert(tmp_path / "law", 1))
        with house_of(server, member, tmp_path) as made:
            made.write("a.jsonl", 0, 150)
            yield made


def seen(house: House) -> tuple[object, ...]:
    """All that the coordinator has of the owner."""
    client = house.member.client
    rows = [*client.experts(), *client.contributions(), *client.trunk_contributions()]
    return files_below(house.server), [row.model_dump_json() for row in rows]


def sendings(house: House) -> list[Sending]:
    with closing(History(house.home)) as history:
        return history.sendings()


def worker(house: House, command: str, *arguments: str) -> str:
    done = CliRunner().invoke(commands.app, [command, *arguments, "--home", str(house.home)])
    assert done.exit_code == 0, done.output
    return done.output


def test_law_1_in_mode_ask_nothing_leaves_before_the_owner_s_yes(house: House) -> None:
    assert seen(house) == ({}, [])
    assert house.run(dry_run=True) == "ran"
    assert house.run(policy=ASK) == "ran"
    assert seen(house) == ({}, [])
    assert "law: expert" in worker(house, "status")
    assert "approved" in worker(house, "approve")
    assert house.run(policy={**ASK, "router_contributions": False}) == "ran"
    [registered] = house.member.client.experts()
    assert registered.state is ExpertState.READY

    trunk = merge(house.server)
    before = seen(house)
    assert house.run(dry_run=True) == "ran"
    assert house.run(policy=ASK) == "ran"
    assert seen(house) == before
    with closing(History(house.home)) as history:
        [asked] = history.asked()
    assert (asked.kind, asked.trunk) == ("router", trunk.digest)
    assert any("What this reveals" in str(part) for part in describe(Path(asked.place)))
    assert house.log().count("What this reveals") >= 2

    worker(house, "refuse", asked.digest[:8])
    for mode in ("ask", "auto"):
        assert house.run(policy={"mode": mode}) == "ran"
    assert seen(house) == before
    assert "you refused to send" in house.log()
    assert len(sendings(house)) == 1

    worker(house, "approve", asked.digest)
    given = json.dumps(house.given(policy=ASK))
    died = run_command(given, script=KILLED)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert seen(house) == before
    assert [each.became for each in sendings(house)] == ["arrived", ""]  # written down before it left
    assert house.run(policy=ASK) == "ran"
    [sent] = house.active()
    assert sent.digest == asked.digest
    assert [(each.item.digest, each.became) for each in sendings(house)] == [
        (registered.digest, "arrived"),
        (asked.digest, "arrived"),
    ]
    assert asked.digest in worker(house, "history")


@pytest.mark.slow
def test_a_worker_that_runs_from_its_worker_toml_waits_for_the_answer(house: House) -> None:
    house.member.register()
    merge(house.server)
    house.home.mkdir()
    (house.home / "token").write_text(house.member.token)
    (house.home / "worker.toml").write_text(
        f'coordinator = "{house.server.url}"\ndomain = "law"\nexpert = "{house.member.folder}"\n'
        f'data = ["{house.folder / "data"}"]\n[policy]\nmode = "ask"\nexpert_weights = false\n'
    )
    log = house.folder / "worker.log"
    running = start_worker(["worker", "run", "--home", str(house.home)], {}, log)
    try:
        eventually(lambda: not running.is_alive() or "waits for your answer" in log.read_text(), seconds=120)
        assert house.active() == []
        status = worker(house, "status")
        assert "running: yes" in status
        assert "router contribution" in status
        worker(house, "approve")
        eventually(lambda: not running.is_alive() or bool(house.active()), seconds=60)
        assert house.documents() == 150
    finally:
        running.terminate()
        ended(running, 60)
    assert "running: no" in worker(house, "status")


def test_law_1_each_switch_keeps_its_kind_at_home(house: House) -> None:
    assert "the policy keeps expert weights here" in house.run(policy={"expert_weights": False})
    assert seen(house) == ({}, [])
    house.member.register()  # another way
    merge(house.server)
    policy = {"expert_weights": False, "router_contributions": False}
    before = set(files_below(house.server))
    assert house.run(policy=policy, trunk_contribution=True) == "ran"
    [sent] = house.member.client.trunk_contributions()
    new = {path for path in set(files_below(house.server)) - before if path.startswith("blobs")}
    assert new == {f"blobs/{sent.digest[:2]}/{sent.digest}"}
    assert house.active() == []
    assert [each.item.kind for each in sendings(house)] == ["trunk"]

    (house.folder / "data" / "a.jsonl").unlink()
    house.write("few.jsonl", 0, 40)
    assert "the policy's min_documents is 100" in house.run(home=str(house.folder / "other"))
    assert house.active() == []
