"""Real coordinators and workers, in separate processes."""

import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch

from moerge.cli import app as cli
from moerge.client.client import Client
from moerge_coordinator.operation.home import initialise
from moerge_lab.demo.processes import address_in

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
MOERGE = [sys.executable, "-m", "moerge"]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "support.hidden", "support.uncollected", "pytest", "support.worker", "moerge_coordinator.bootstrap",
        "moerge_coordinator.server", "support.frozen",
    ]
)  # fmt: skip  # imports of ten seconds


def marked(mark: str) -> dict[int, str]:
    """Process id -> command line of every descendant with MOERGE_TEST_MARK=`mark`."""
    wanted = f"MOERGE_TEST_MARK={mark}".encode()
    result = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if command and wanted in (process / "environ").read_bytes().split(b"\0"):
                result[int(process.name)] = command.replace(b"\0", b" ").decode()
        except OSError:  # it has just ended
            continue
    return result


def run_command(
    *arguments: object, stdin: str = "", typed: str = "", script: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command, or a Python script, to its end in a forked process; returns its status and output.

    `stdin` is its standard input; with `typed`, that is a terminal on which this is typed.
    """
    command = [*map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stdin_path, out, err = (Path(folder) / name for name in ("in", "out", "err"))
        stdin_path.write_text(stdin)
        if typed:
            ours, its = pty.openpty()
            for end in (ours, its):
                stack.callback(os.close, end)
            os.write(ours, typed.encode())
            stdin_path = Path(os.ttyname(its))
        status = ended(_start(command, environment, out, err, stdin_path, script), 300)
        return subprocess.CompletedProcess(command, status, out.read_text(), err.read_text())


def moerge(*arguments: object, **environment: str) -> str:
    """Runs a command to its end and returns its standard output; on failure the test fails with its output."""
    done = run_command(*arguments, **environment)
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def ended(process: ForkServerProcess, seconds: float) -> int:
    """Waits for its exit status."""
    process.join(seconds)
    assert process.exitcode is not None, f"it still runs after {seconds} s"
    return process.exitcode


def _start(
    arguments: list[str],
    environment: Mapping[str, str],
    out: Path,
    err: Path | None = None,
    stdin: Path = Path(os.devnull),
    script: str = "",
) -> ForkServerProcess:
    out.touch()
    given = (arguments, {**os.environ, **_ENVIRONMENT, **environment}, out, err or out, stdin, script)
    process = FORKS.Process(target=_run, args=given, daemon=True)
    process.start()
    return process


def _run(arguments: list[str], environment: Mapping[str, str], out: Path, err: Path, stdin: Path, script: str) -> None:
    """The body of a forked process: a command or a script with these arguments."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for path, number in ((out, 1), (err, 2)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), number)
    sys.stdin = stdin.open()
    torch.set_num_threads(1)
    sys.argv = ["moerge", *arguments]
    if script:
        exec(script, {})  # noqa: S102  # our own script
    else:
        cli.main()


class Coordinator:
    """A coordinator's home; it can be started, killed and started again at the same address.

    With an `operator_token`, the home exists already, or it shares its database. `settings` are in TOML.
    """

    def __init__(self, home: Path, operator_token: str | None = None, settings: str = "") -> None:
        self.home = home
        if settings:
            home.mkdir(parents=True)
            (home / "coordinator.toml").write_text(settings)
        self.operator_token = operator_token or initialise(home).secret or ""
        self.url = ""
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        log = self.home / "log"
        start = log.stat().st_size if log.exists() else 0
        self._process = _start(["coordinator", "serve", str(self.home), "--port", str(self.port)], {}, log)
        deadline = time.monotonic() + 60
        while not (result := address_in(log, start)):
            assert self.runs(), log.read_text()
            assert time.monotonic() < deadline, "the coordinator does not answer"
            time.sleep(0.02)
        self.url = result

    @property
    def port(self) -> int:
        """0 before the first start."""
        return int(self.url.rpartition(":")[2] or 0)

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
        """Waits for its exit status."""
        assert self._process is not None
        return ended(self._process, seconds)

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
    """The coordinator's peak memory since the last call with `anew`."""
    process = Path(f"/proc/{server.pid}")
    if anew:
        (process / "clear_refs").write_text("5")
    [line] = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


@contextmanager
def coordinator(
    home: Path, operator_token: str | None = None, settings: str = "", seed: Path | None = None
) -> Iterator[Coordinator]:
    """A running coordinator with a new home, in which a seed is registered, if one is given."""
    server = Coordinator(home, operator_token, settings)
    if seed is not None:
        moerge("coordinator", "seed", home, seed)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def worker_command(domain: str, expert: Path, seed: Path, data: Path, home: Path) -> list[str]:
    """The arguments of a worker that contributes once; its policy allows 100 documents."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "worker.toml").write_text("[policy]\nmin_documents = 100\n")
    places = [f"--expert={expert}", f"--seed={seed}", f"--data={data}", f"--home={home}"]
    return ["worker", "run", "--once", "--domain", domain, *places]


def start_worker(arguments: list[str], environment: dict[str, str], log: Path, script: str = "") -> ForkServerProcess:
    """A worker in a process group of its own: the command, or a script with these arguments."""
    return _start(arguments, environment, log, script=script)
