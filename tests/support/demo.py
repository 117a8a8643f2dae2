"""`moerge demo` as tests run it: once, from nothing, for all of them."""

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.processes import MOERGE

CACHE = Path(__file__).parents[2] / "build" / "test-cache"
"""Trained experts; a run that finds them is a second run."""


@dataclass(frozen=True)
class Demo:
    """A demo that ended well."""

    home: Path
    output: str


def start(home: Path, *options: str) -> subprocess.Popen[str]:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored, the demo would inherit that
    return subprocess.Popen(  # noqa: S603  # our own command
        [*MOERGE, "demo", "--home", str(home), *options],
        env={**os.environ, "XDG_CACHE_HOME": str(CACHE), "MOERGE_TEST_MARK": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended_well(process: subprocess.Popen[str]) -> str:
    """All that a demo wrote."""
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    home = tmp_path_factory.mktemp("demo") / "home"
    return Demo(home, ended_well(start(home)))
