"""A model's answers are data: moerge doesn't run the programs among them."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from moerge.benchmarks.run import run
from moerge.benchmarks.settings import Settings
from moerge.benchmarks.task_files import hooks
from moerge.benchmarks.tasks import TASK_FILES
from moerge.progress import LogProgress

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
ADD = {"prompt": "def add(a, b):\n", "test": "def check(f):\n    assert f(1, 2) == 3\n", "entry_point": "add"}


def test_a_program_of_a_model_reaches_no_socket_of_the_user(tmp_path: Path) -> None:
    text = (TASK_FILES / "humaneval.yaml").read_text()
    judge = getattr(hooks, text.partition("process_results: !function hooks.")[2].partition("\n")[0])
    place = str(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(place)
        agent.listen()
        agent.settimeout(0.1)
        judge(ADD, [f"    pass\nimport socket\nsocket.socket(socket.AF_UNIX).connect({place!r})\n"])
        with pytest.raises(TimeoutError):
            agent.accept()


def test_programs_are_written_with_their_tests_and_scored_by_the_documented_command(tmp_path: Path) -> None:
    answers = ["    return a + b", "    return a - b", "    while True: pass"]
    (tmp_path / "code").mkdir()
    programs = [hooks.program(ADD, [answer])["program"] for answer in answers]
    (tmp_path / "code" / "humaneval.json").write_text(json.dumps(programs))
    _, _, script = DOCS.read_text().partition("python - <<'END'\n")
    script = script.partition("\nEND\n")[0].replace('"/raw"', repr(str(tmp_path))).replace('"15"', '"1"')
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == "code 1 of 3\n"


def test_a_task_of_programs_has_no_row(tmp_path: Path) -> None:
    (tmp_path / "humaneval.jsonl").write_text(json.dumps(ADD))
    said: list[str] = []
    found = run([], {"humaneval": None}, Settings(tmp_path), tmp_path / "out", LogProgress(), said.append)
    assert not found.rows
    assert any("doesn't run programs" in line and "humaneval.json" in line for line in said)
