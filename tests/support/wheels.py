"""Wheels of a source tree, and commands that see no source tree."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: object, cwd: Path, code: int = 0, environment: Mapping[str, str] | None = None) -> str:
    """Its output; it sees no source tree, unless the environment names one."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(environment or {})
    done = subprocess.run([*map(str, command)], cwd=cwd, env=given, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def wheel_of(source: Path, out: Path) -> Path:
    """The wheel of a source tree, built without network."""
    arguments = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", out)
    run(sys.executable, "-m", "pip", "wheel", *arguments, source, cwd=out)
    [result] = out.glob("moerge-*.whl")
    return result
