"""A model whose answers are programs: moerge executes none of them, in no sandbox either."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge_lab.benchmarks.arguments import tasks
from moerge_lab.benchmarks.harness import arguments
from moerge_lab.benchmarks.models import Model
from moerge_lab.benchmarks.settings import Settings
from moerge_lab.benchmarks.tasks import TASK_FILES, TASKS
from support.wheels import ROOT

PACKAGES = "proto", "services", "workers", "coordinator"


def executing(path: Path) -> Iterator[str]:
    """The calls that execute text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("exec", "eval"):
            yield f"{path}:{node.lineno}"


def test_no_module_executes_text() -> None:
    paths = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    assert len(paths) > 100
    assert [call for path in paths for call in executing(path)] == []


def test_of_the_benchmarks_the_harness_alone_starts_processes() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in TASK_FILES.parent.rglob("*.py")}
    assert {name for name, text in texts.items() if "subprocess" in text or "os.system" in text} == {"harness.py"}


def test_the_task_of_programs_is_unknown() -> None:
    with pytest.raises(MoergeError, match="unknown task 'humaneval'"):
        tasks("humaneval", [])


@pytest.mark.parametrize("name", TASKS)
def test_lm_eval_is_not_told_to_execute_answers(name: str, tmp_path: Path) -> None:
    """It does so only by this option, and with a task or metric of that kind."""
    told = arguments(Model("merged", "version", tmp_path), name, Settings(None), tmp_path)
    told.append((TASK_FILES / f"{name}.yaml").read_text(encoding="utf-8"))
    assert not [word for word in ("unsafe_code", "code_eval") if word in " ".join(told)]
