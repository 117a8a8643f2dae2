"""A fixed set of schedules; `python -m simulation` plays others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("of", "runs"), [("process", 12), ("processes", 2), ("replicas", 2)])
def test_every_operation_is_applied_exactly_once(of: str, runs: int) -> None:
    """In a separate process, because the hooks for crashes can't be removed."""
    command = [sys.executable, "-m", "simulation", "--runs", str(runs), "--seed", "1", "--of", of]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(  # noqa: S603  # our own module
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr[-20000:]
    counted = json.loads(done.stdout)
    assert counted["schedules"] >= runs
    assert counted["faults"] >= runs
