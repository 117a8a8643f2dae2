"""The process of lm_eval is followed to its end, and nothing of it is left."""

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
print(subprocess.Popen(["sleep", "60"]).pid, file=sys.stderr)
"""


def test_progress_is_in_questions_and_children_are_killed(tmp_path: Path) -> None:
    said = list[str]()
    numbers = {"piqa": 2, "lambada": 4}
    assert follow([sys.executable, "-c", SAYS], tmp_path / "log", "seed", numbers, LogProgress(said.append)) is None
    assert [line.partition(":")[0] for line in said] == ["seed", "seed"]
    assert ["piqa: 100 %" in said[0], "lambada: 100 %" in said[1]] == [True, True]
    line, process = (tmp_path / "log").read_text().split("\n")[:2]
    assert line == "a log line"
    status = Path("/proc") / process / "status"
    deadline = time.monotonic() + 10
    while status.exists() and "(zombie)" not in status.read_text():
        assert time.monotonic() < deadline, "the child still runs"
        time.sleep(0.01)


def test_an_error_is_returned(tmp_path: Path) -> None:
    error = Said(task="piqa", error="not enough memory", where="memory", todo="less")
    command = [sys.executable, "-c", f"print({error.model_dump_json()!r})"]
    assert follow(command, tmp_path / "log", "seed", {"piqa": 1}, LogProgress()) == error
