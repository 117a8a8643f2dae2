"""What is seen of a worker that runs: on a terminal, in a log, from Prometheus, at the coordinator."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from moerge.cli import app as cli
from moerge.errors import MoergeError
from moerge_proto.progress import Progress, Stage
from moerge_workers import commands
from moerge_workers.watching.metrics import served
from moerge_workers.watching.status import Status
from support.federation import Member, federation_of
from support.models import expert, texts
from support.processes import MOERGE, Coordinator, run_command
from support.servers import held_ports
from support.terminal import Terminal

POLICY = "head_contributions = false\nmin_documents = 100"
"""Lines of a policy, under which parts and router contributions alone leave."""


@dataclass
class Owner:
    """law's, who isn't registered yet, the coordinator, and the owner's copy of the seed."""

    server: Coordinator
    member: Member
    folder: Path
    seed: Path

    def command(self, home: str, policy: str, *options: object) -> list[str]:
        """A worker's command; its home has a worker.toml with the policy and a token."""
        place = self.folder / home
        place.mkdir(exist_ok=True)
        (place / "worker.toml").write_text(f"fit = false\n[policy]\n{POLICY}\n{policy}\n")
        (place / "token").write_text(self.member.token)
        given = {"coordinator": self.server.url, "domain": "law", "expert": self.member.folder, "home": place}
        words = [f"--{name}={value}" for name, value in {**given, "seed": self.seed}.items()]
        return [*MOERGE, "worker", "run", *words, *map(str, options)]

    def data(self, documents: int) -> str:
        return f"--data={texts(self.folder / 'the texts.jsonl', 1, documents)}"


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    with federation_of(tmp_path_factory.mktemp("watching")) as made:
        yield Owner(made.server, made.join("law", expert(made.folder / "law", 1)), made.folder, made.seed)


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with held_ports(1) as held:
        yield held


@pytest.mark.slow
def test_a_terminal_shows_the_work_asks_and_is_left_clean(owner: Owner, ports: list[int]) -> None:
    [port] = ports
    place = (f"--metrics-port={port}", "--metrics-host=127.0.0.2")
    command = owner.command("terminal", "mode = 'ask'\nprogress = true", owner.data(600), *place)
    terminal = Terminal(command)
    terminal.until(lambda shown: "[y/n]" in shown)
    terminal.type(b"y\n")
    terminal.until(lambda shown: shown.count("[y/n]") == 2)
    asked = len(terminal.shown)
    terminal.type(b"y\n")
    terminal.until(lambda shown: "waiting for the next body" in shown[asked:])
    result = figures(port)
    terminal.type(b"\x03")  # Ctrl-C
    assert terminal.close() == 130
    assert any(
        re.search(r"statistics of law .* 100% +[\d,]+ tokens/s \d:\d\d:\d\d", line) for line in terminal.lines()
    ), terminal.lines()
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")  # the cursor is there again

    assert result["moerge_worker_shards_done"] == result["moerge_worker_shards_planned"] > 1
    assert result["moerge_worker_tokens_total"] > 2048
    assert result['moerge_worker_sent_bytes_total{kind="expert"}'] > 1000
    assert result["moerge_worker_actor_restarts_total"] == 0
    assert result['moerge_worker_stage{stage="waiting"}'] == 1
    assert result["moerge_worker_coordinator_answered_timestamp_seconds"] > 1e9

    status = CliRunner().invoke(commands.app, ["status", "--home", str(owner.folder / "terminal")]).output
    assert re.search(r"^sent: expert [\d.]+ kB, router [\d.]+ kB$", status, re.MULTILINE), status

    [told] = owner.member.client.progress()
    assert (told.stage, told.shards_done, told.owner) == (Stage.ENDED, told.shards_total, "law-owner")
    assert told.shards_total > 1


def figures(port: int) -> dict[str, float]:
    """What Prometheus reads."""
    text = httpx.get(f"http://127.0.0.2:{port}/metrics").text
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def objects(text: str) -> list[dict[str, Any]]:
    """Every line of it, each an object."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_json_log_has_one_object_per_line_with_the_figures(owner: Owner) -> None:
    before = list(owner.member.client.progress())
    command = owner.command("json", "", owner.data(300), "--log-format=json", "--once")
    done = run_command(*command[len(MOERGE) :])
    assert (done.returncode, done.stdout) == (0, "")
    lines = objects(done.stderr)
    assert all({"timestamp", "level", "event"} <= line.keys() for line in lines)
    [told] = [line for line in lines if line["event"].startswith("statistics of law: 100 %")]
    assert (told["domain"], told["stage"], told["shards_done"]) == ("law", "computing", told["shards_total"])
    assert told["tokens_per_second"] > 0
    assert lines[-1]["sent_bytes"].keys() >= {"router"}
    assert list(owner.member.client.progress()) == before  # law 1: its switch is off by default


def test_json_log_objects_contain_no_private_data(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.data(50)
    monkeypatch.setenv("HOME", str(owner.folder))
    data = "--data=~/the texts.jsonl"
    with (owner.folder / "the texts.jsonl").open("a") as out:
        out.write('{"text": 1, "secret": 1}\n')
    command = owner.command("json", "", data, "--log-format=json", "--bad-share=0.5")
    done = run_command(*command[len(MOERGE) :])
    assert (done.returncode, done.stdout) == (1, "")
    lines = objects(done.stderr)
    assert all({"timestamp", "level", "event"} <= line.keys() for line in lines)
    [bad] = [line for line in lines if line["event"].startswith("skipped: ")]
    assert bad["event"].startswith("skipped: (a data file), line 51: no document in the field 'text'")
    assert (bad["domain"], bad["stage"]) == ("law", "reading")
    assert (lines[-1]["level"], lines[-1]["where"]) == ("error", "`data`")
    assert "min_documents" in lines[-1]["event"]
    assert lines[-1]["todo"]
    assert owner.member.token not in done.stderr
    assert "the texts" not in done.stderr


def test_a_port_that_is_taken_is_an_error_of_its_option(owner: Owner) -> None:
    with (
        pytest.raises(MoergeError, match=r"`metrics_port`: can't listen on 127.0.0.1:\d+"),
        served("127.0.0.1", owner.server.port, Status(owner.folder, "law", "")),
    ):
        raise AssertionError("it listens")


def test_the_operator_sees_how_far_everybody_is(owner: Owner) -> None:
    told = Progress(
        domain="law", stage=Stage.READING, shards_done=1, shards_total=2000, tokens_per_second=3, seconds_left=61
    )
    owner.member.client.tell_progress(told)
    shown = CliRunner().invoke(cli.app, ["progress"], env={**owner.server.environment(), "COLUMNS": "120"}).output
    [row] = [line for line in shown.splitlines() if "law-owner" in line]
    for part in ("law", "reading", "1 of 2,000", "3", "0:01:01", "UTC"):
        assert part in row
