"""The demo's processes: start, output and stop."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOBase
from pathlib import Path
from types import TracebackType
from typing import TextIO

from moerge.errors import MoergeError
from moerge.terminal import echo

_GRACE_SECONDS = 10.0


def address_in(log: Path, start: int = 0) -> str | None:
    """The coordinator's address in its log after byte `start`; None if not yet logged."""
    match = re.search(rb"running on (https?://\S+) \(", log.read_bytes()[start:])
    return match and match[1].decode()


def output_of(*arguments: object) -> str:
    """The standard output of `moerge ARGUMENTS`; its messages are shown only if it fails."""
    command = [sys.executable, "-m", "moerge", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own command
    if done.returncode:
        raise MoergeError(done.stderr.strip() or f"ended with status {done.returncode}", where=f"moerge {arguments[0]}")
    return done.stdout.strip()


class Processes:
    """`moerge` commands as separate processes, each with one thread. The context's end stops them all."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def start(
        self, arguments: Sequence[object], environment: Mapping[str, str], *, label: str = "", log: Path | None = None
    ) -> subprocess.Popen[str]:
        """Starts `moerge ARGUMENTS`. Messages go to `log`, or after [label] to standard error, or to ours."""
        out: int | TextIO | None = subprocess.PIPE if label else None
        if log is not None:
            out = log.open("a", encoding="utf-8")
        process = subprocess.Popen(  # noqa: S603  # our own command
            [sys.executable, "-m", "moerge", *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment},
            stdout=out,
            stderr=None if out is None else subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the others
        )
        if isinstance(out, TextIOBase):
            out.close()
        if process.stdout is not None:
            threading.Thread(target=_echo, args=(label, process.stdout), daemon=True).start()
        self._running.append(process)
        return process

    def finish(self, label: str, process: subprocess.Popen[str]) -> None:
        if code := process.wait():
            raise MoergeError(f"ended with status {code}", where=label, todo="see its messages above")

    def stop(self, *processes: subprocess.Popen[str]) -> None:
        """Stops running processes: SIGTERM, and SIGKILL after ten seconds."""
        alive = [process for process in processes if process.poll() is None]
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(*self._running)


def _echo(label: str, lines: Iterable[str]) -> None:
    for line in lines:
        echo(f"[{label}] {line}", err=True, nl=False)
