"""`moerge worker status`, of a home that a running worker holds."""

from pathlib import Path

from filelock import FileLock
from typer.testing import CliRunner

from moerge_workers.commands import app
from moerge_workers.watching.status import LOCK, SlotState, State, Status
from support.processes import run_command


def test_status_counts_slots_per_device_of_a_running_worker(tmp_path: Path) -> None:
    def slots() -> str:
        lines = CliRunner().invoke(app, ["status", "--home", str(tmp_path)]).output.splitlines()
        [line] = [line for line in lines if line.startswith("slots: ")]
        return line

    status = Status(tmp_path, "law", "http://127.0.0.1:1")
    devices = "cpu of b", "cpu of a", "cpu of b"
    with FileLock(tmp_path / LOCK):
        status.update(slots={})
        assert slots() == "slots: none now"
        status.update(slots={number: SlotState(device=device) for number, device in enumerate(devices)})
        assert slots() == "slots: 1 on cpu of a, 2 on cpu of b"
    assert slots() == "slots: none now"


def test_rate_and_estimate_are_of_all_slots() -> None:
    state = State.model_validate({"at": "2026-01-01T00:00:00Z", "domain": "law", "coordinator": "", "tokens_left": 600})
    assert (state.tokens_per_second, state.seconds_left) == (0, None)
    slots = {0: SlotState(device="cpu", tokens_per_second=10), 1: SlotState(device="cpu", tokens_per_second=20)}
    state = state.model_copy(update={"slots": slots})
    assert (state.progress.tokens_per_second, state.progress.seconds_left) == (30, 20)
    assert state.model_copy(update={"tokens_left": 10**15}).seconds_left is None


def test_of_several_workers_the_domain_names_one(tmp_path: Path) -> None:
    for domain in ("law", "art"):
        (tmp_path / ".moerge" / f"worker-{domain}").mkdir(parents=True)

    def said(*words: str) -> str:
        done = run_command("worker", *words, HOME=str(tmp_path))
        return (done.stdout + done.stderr).replace("\n", " ")

    both = said("status")
    assert "expected exactly one worker folder; found " in both
    assert "worker-art, " in both
    assert "select the worker with --domain or --home" in both
    assert "running: no" in said("status", "--domain", "law")
    assert "New in the last 30 days" in said("history", "--domain", "law")
    assert "expected exactly one item 3f…; found 0" in said("approve", "3f", "--domain", "law")
    assert "worker-cookin: expected exactly one worker folder; found none" in said("refuse", "--domain", "cookin")
