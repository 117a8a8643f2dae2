"""`moerge demo`, as a newcomer runs it, from nothing; and what its tables must say."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support.demo import CACHE, DEMO
from support.processes import marked


def start(home: Path, *options: str) -> subprocess.Popen[str]:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored, the demo would inherit that
    environment = {**os.environ, "XDG_CACHE_HOME": str(CACHE), "MOERGE_TEST_MARK": str(home)}
    return subprocess.Popen(  # noqa: S603  # our own command
        [*DEMO, str(home), *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def left_after(seconds: float, home: Path) -> dict[int, str]:
    """The demo's processes that still run after so many seconds; Ray's take a moment to end."""
    deadline = time.monotonic() + seconds
    while (left := marked(str(home))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def table(home: Path, number: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((home / f"table-{number}.json").read_text())
    return content


def averages(home: Path, number: int) -> dict[str, float]:
    return {record["row"]: record["score"] for record in table(home, number)["averages"]}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_main_job_again_after_ctrl_c_and_by_the_paper_s_method(tmp_path: Path) -> None:
    """Stopped by Ctrl-C in the midst of the workers' work, it leaves no process; run again, it goes on to the end.

    By the paper's method, with which its tables compare it, both the oracle and the version are lower.
    """
    home = tmp_path / "demo"
    stopped = start(home)
    assert stopped.stdout is not None
    for line in stopped.stdout:
        if "] fitting " in line or "] statistics of" in line:
            break
    assert len(marked(str(home))) > 3
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(60) == 130
    stopped.stdout.close()
    assert left_after(30, home) == {}

    again = start(home)
    output = again.communicate()[0]
    assert again.returncode == 0, output
    for number, domains in ((1, 3), (2, 4)):
        average = averages(home, number)
        assert len(table(home, number)["domains"]) == domains
        assert average["version"] > average["oracle"] - 3, average
        assert average["version"] > average["averaging"] + 2, average
        assert average["version"] > average["random routing"] + 4, average
        assert average["version"] > average["dume"] + 3, average
        for domain, shares in table(home, number)["shares"]["version"].items():
            own = table(home, number)["domains"].index(domain)
            assert shares[own] == max(shares), (domain, shares)
    assert "shared" in output
    assert str(home / "coordinator" / "versions" / "2") in output
    assert left_after(30, home) == {}

    papers = start(home, "--recipe", "dume")  # the same experts in the same home: versions 3 and 4
    output = papers.communicate()[0]
    assert papers.returncode == 0, output
    for ours, theirs in ((1, 3), (2, 4)):
        for row in ("oracle", "version"):
            assert averages(home, ours)[row] > averages(home, theirs)[row] + 3, output
