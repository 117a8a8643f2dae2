"""Real coordinators and workers, as processes of their own."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import httpx
import torch

from moerge.cli import app as cli
from moerge.client.client import Client
from moerge.demo.processes import free_port
from moerge_coordinator.bootstrap import initialise

_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
MOERGE = [sys.executable, "-m", "moerge"]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["moerge_coordinator.bootstrap", "moerge_coordinator.server"])  # they take seconds


def marked(mark: str) -> dict[int, str]:
    """Process id -> command line of what runs with MOERGE_TEST_MARK=`mark`, however deep below us it was started."""
    wanted = f"MOERGE_TEST_MARK={mark}".encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if command and wanted in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = command.replace(b"\0", b" ").decode()
        except OSError:  # it has just ended
            continue
    return found


def moerge(*arguments: object, **environment: str) -> str:
    """Runs a command to its end and returns its standard output; its failure fails the test with what it said."""
    command = [*MOERGE, *map(str, arguments)]
    done = subprocess.run(  # noqa: S603  # our own command
        command, env={**_ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def _run(arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
    """What a forked process does: a command of ours, as if it had been started with these."""
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as out:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(out.fileno(), stream.fileno())
    torch.set_num_threads(1)
    sys.argv = ["moerge", *arguments]
    cli.main()


class Coordinator:
    """A coordinator's home and port; it can be started, killed and started again.

    With an `operator_token`, the home is there already, or its database is another one's too. `settings` are in TOML.
    """

    def __init__(self, home: Path, operator_token: str | None = None, settings: str = "") -> None:
        self.home = home
        if settings:
            home.mkdir()
            (home / "coordinator.toml").write_text(settings)
        self.operator_token = operator_token or initialise(home).secret or ""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        log = self.home / "log"
        command = ["coordinator", "serve", str(self.home), "--port", str(self.port)]
        self._process = _FORKS.Process(target=_run, args=(command, {**os.environ, **_ENVIRONMENT}, log), daemon=True)
        self._process.start()
        for _ in range(600):
            try:
                httpx.get(f"{self.url}/healthz").raise_for_status()
                return
            except httpx.TransportError:
                assert self.runs(), log.read_text()
                time.sleep(0.1)
        raise AssertionError("the coordinator does not answer")

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def runs(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ended(self, seconds: float) -> int:
        """Its exit status, once it has ended."""
        assert self._process is not None
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"it still runs after {seconds} s"
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL: no handler runs."""
        self.send(signal.SIGKILL)
        self.ended(30)

    def stop(self) -> None:
        if self.runs():
            self.send(signal.SIGTERM)
            self.ended(30)

    def client(self, token: str | None = None) -> Client:
        return Client(self.url, token or self.operator_token, patience=20)

    def environment(self, token: str | None = None) -> dict[str, str]:
        return {"MOERGE_COORDINATOR": self.url, "MOERGE_TOKEN": token or self.operator_token}


def peak_bytes(server: Coordinator, *, anew: bool = False) -> int:
    """The most memory that the coordinator's process has had since this was last called with `anew`."""
    process = Path(f"/proc/{server.pid}")
    if anew:
        (process / "clear_refs").write_text("5")
    [line] = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


@contextmanager
def coordinator(home: Path, operator_token: str | None = None, settings: str = "") -> Iterator[Coordinator]:
    """A running coordinator with a fresh home."""
    made = Coordinator(home, operator_token, settings)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def worker_command(domain: str, expert: Path, data: Path, home: Path) -> list[str]:
    """The arguments of a worker that contributes once."""
    places = ["--expert", str(expert), "--data", str(data), "--home", str(home)]
    return ["worker", "run", "--once", "--domain", domain, *places]


def start_worker(arguments: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603
            [*MOERGE, *arguments], env={**_ENVIRONMENT, **environment}, stdout=out, stderr=out, start_new_session=True
        )
