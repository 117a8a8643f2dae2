"""`moerge demo`, as a newcomer runs it, from nothing; and what its tables must say."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.demo import Demo, ended_well, start
from support.processes import marked

pytestmark = pytest.mark.slow


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


@pytest.mark.timeout(1500)
def test_the_main_job_s_version_comes_near_the_oracle_and_every_expert_gets_its_own_text(demo: Demo) -> None:
    for number, domains in ((1, 3), (2, 4)):
        average = averages(demo.home, number)
        assert len(table(demo.home, number)["domains"]) == domains
        assert average["version"] > average["oracle"] - 3, average
        assert average["version"] > average["averaging"] + 2, average
        assert average["version"] > average["random routing"] + 4, average
        assert average["version"] > average["dume"] + 3, average
        for domain, shares in table(demo.home, number)["shares"]["version"].items():
            own = table(demo.home, number)["domains"].index(domain)
            assert shares[own] == max(shares), (domain, shares)
    assert "shared" in demo.output
    assert str(demo.home / "coordinator" / "versions" / "2") in demo.output
    assert left_after(30, demo.home) == {}


@pytest.mark.timeout(1500)
def test_after_ctrl_c_it_goes_on_and_by_the_paper_s_method_both_oracle_and_version_are_lower(demo: Demo) -> None:
    """Stopped by Ctrl-C in the midst of the workers' work, it leaves no process; run again, it goes on to the end.

    The same experts in the same home make versions 3 and 4.
    """
    stopped = start(demo.home, "--recipe", "dume")
    assert stopped.stdout is not None
    for line in stopped.stdout:
        if "] statistics of" in line:
            break
    assert len(marked(str(demo.home))) > 3
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(60) == 130
    stopped.stdout.close()
    assert left_after(30, demo.home) == {}

    output = ended_well(start(demo.home, "--recipe", "dume"))
    for ours, theirs in ((1, 3), (2, 4)):
        for row in ("oracle", "version"):
            assert averages(demo.home, ours)[row] > averages(demo.home, theirs)[row] + 3, output
    assert left_after(30, demo.home) == {}
