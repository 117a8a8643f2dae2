"""The process of lm_eval is followed to its end, and nothing of it is left."""

import os
import subprocess
import sys
import time
from pathlib import Path

from moerge.benchmarks.job import Said
from moerge.benchmarks.process import follow
from moerge.progress import LogProgress

SAYS = """
import subprocess, sys
print("a library's line")
for task in ("piqa", "lambada"):
    for done in (1, 4):
        print('{"task": "%s", "done": %d, "total": 4}' % (task, done))
print("a log line", file=sys.stderr)
print(subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL).pid, file=sys.stderr)
"""


def require_end(process: str) -> None:
    status = Path("/proc") / process / "status"
    deadline = time.monotonic() + 30
    while status.exists() and "(zombie)" not in status.read_text():
        assert time.monotonic() < deadline, f"{process} still runs"
        time.sleep(0.01)


def test_progress_is_in_questions_and_children_are_killed(tmp_path: Path) -> None:
    said = list[str]()
    numbers = {"piqa": 2, "lambada": 4}
    assert follow([sys.executable, "-c", SAYS], tmp_path / "log", "seed", numbers, LogProgress(said.append)) is None
    assert [line.partition(":")[0] for line in said] == ["seed", "seed"]
    assert ["piqa: 100 %" in said[0], "lambada: 100 %" in said[1]] == [True, True]
    line, process = (tmp_path / "log").read_text().split("\n")[:2]
    assert line == "a log line"
    require_end(process)


def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.json")
    child = [sys.executable, "-m", "moerge.benchmarks.child", str(tmp_path / "job.json")]
    script = f"import subprocess; print(subprocess.Popen({child!r}).pid, flush=True); input()"
    pipe = subprocess.PIPE
    parent = [sys.executable, "-c", script]
    with subprocess.Popen(parent, stdin=pipe, stdout=pipe, text=True) as command:  # noqa: S603  # our own command
        assert command.stdout is not None
        process = command.stdout.readline().strip()
        with (tmp_path / "job.json").open("w"):  # once the child reads its job
            command.kill()
            require_end(process)


def test_an_error_is_returned(tmp_path: Path) -> None:
    error = Said(task="piqa", error="not enough memory", where="memory", todo="less")
    command = [sys.executable, "-c", f"print({error.model_dump_json()!r})"]
    assert follow(command, tmp_path / "log", "seed", {"piqa": 1}, LogProgress()) == error
