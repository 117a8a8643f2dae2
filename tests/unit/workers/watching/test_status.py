"""`moerge worker status`, of a home that a running worker holds."""

from pathlib import Path

from filelock import FileLock
from typer.testing import CliRunner

from moerge_workers.commands import app
from moerge_workers.watching.status import LOCK, SlotState, State, Status


def test_the_slots_of_each_device_and_node_are_counted_while_the_worker_runs(tmp_path: Path) -> None:
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
