"""The measurement: both sides alternately after one warm-up each, in this process or in separate ones."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
RUNS = 5
_POLL_SECONDS = 0.02


def seconds(call: Callable[[], object]) -> float:
    """The duration of `call`."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(ours: Callable[[], T], theirs: Callable[[], T], runs: int = RUNS) -> list[tuple[T, T]]:
    """Both sides' results, ours first, `runs` times after a warm-up that doesn't count."""
    say("  warm-up")
    ours()
    theirs()
    measured = []
    for run in range(runs):
        measured.append((ours(), theirs()))
        say(f"  run {run + 1} of {runs}: {measured[-1]}")
    return measured


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Run:
    """A process from start to end: wall seconds, and the largest observed anonymous memory in bytes."""

    seconds: float
    anonymous: int


def process(command: Sequence[str], log: Path, environment: dict[str, str]) -> Run:
    """Runs `command` with its output in `log`, and reads its memory every 20 ms.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    anonymous = 0
    with log.open("w", encoding="utf-8") as output:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=output, env=environment)  # noqa: S603  # our own command
        while child.returncode is None:
            anonymous = max(anonymous, _anonymous(child.pid))
            with suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_SECONDS)
        taken = time.perf_counter() - start
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command, log.read_text(encoding="utf-8")[-4000:])
    return Run(taken, anonymous)


def _anonymous(pid: int) -> int:
    """RssAnon of a process and its descendants, in bytes; 0 for an ended one."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    own = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")), 0)
    return 1024 * own + sum(_anonymous(int(child)) for child in children)
