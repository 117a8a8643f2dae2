"""The commands of docs/benchmarks.md for an engine, in its environment: equal experts score as the dense model."""

import json
import shutil
import subprocess
from pathlib import Path

from engines.engine import Engine
from engines.served import SHELL
from moerge.errors import MoergeError
from support.benchmarks import questions
from support.models import expert
from support.transcripts import commands
from support.versions import published

PAGE = "docs/benchmarks.md"
_QUESTIONS = 40


def benchmarked(engine: Engine, home: Path) -> str:
    """Runs the commands of the engine's section in a new folder, and returns the score of all models.

    Raises:
        MoergeError: a command fails, or the scores differ.
    """
    shutil.rmtree(home, ignore_errors=True)
    (home / "benchmarks").mkdir(parents=True)
    questions(home / "benchmarks" / "arc-easy.test.json", _QUESTIONS)
    dense = expert(home / "code", 1, hidden_size=128)  # engines have no heads of 8
    published([dense, dense], home / "made").rename(home / "merged")
    _install, *typed = (command.line for command in commands(PAGE) if command.section == engine.name)
    for line in typed:
        run = subprocess.run(  # noqa: S603  # our own command
            [SHELL, "-c", line], capture_output=True, text=True, env=engine.environ, cwd=home, check=False
        )
        if run.returncode:
            raise MoergeError(run.stderr[-2000:], where=line, todo=f"read the logs in {home}")
    table = json.loads((home / "scores" / "table.json").read_bytes())
    found = {name: result["value"] for name, result in table["tasks"][0]["results"].items()}
    [bare] = (home / "bare").rglob("results*.json")
    found["without moerge"] = json.loads(bare.read_bytes())["results"]["arc-easy"]["acc,none"]
    if len(set(found.values())) > 1:
        raise MoergeError(f"equal models have other scores: {found}", where=engine.name, todo=f"see {home}")
    return f"{engine.name}: {found}"
