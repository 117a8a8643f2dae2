"""A keeper of masks in its own process."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moerge.keeper.journal import Answer, Keeper
from moerge_lab.demo.processes import address_in
from moerge_proto.signatures import JoinRequest
from support.processes import ended, moerge, start_worker


class KeeperProcess:
    """A keeper's home; it can be started, killed and started again at the same address."""

    def __init__(self, home: Path) -> None:
        self.home, self.key, self.url = home, moerge("keeper", "init", home), ""

    def start(self) -> None:
        log = self.home / "log"
        begin = log.stat().st_size if log.exists() else 0
        port = self.url.rpartition(":")[2] or "0"
        self._process = start_worker(["keeper", "serve", str(self.home), "--port", port], {}, log)
        deadline = time.monotonic() + 60
        while not (address := address_in(log, begin)):
            assert self._process.is_alive(), log.read_text()
            assert time.monotonic() < deadline, "the keeper does not answer"
            time.sleep(0.02)
        self.url = address

    def approve(self, request: JoinRequest) -> None:
        moerge("keeper", "approve", self.home, request.line())

    def answers(self) -> list[Answer]:
        return Keeper(self.home).answers()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def runs(self) -> bool:
        return self._process.is_alive()

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        os.kill(self.pid, number)
        return ended(self._process, 30)


@contextmanager
def keeper_of(home: Path) -> Iterator[KeeperProcess]:
    keeper = KeeperProcess(home)
    keeper.start()
    try:
        yield keeper
    finally:
        if keeper.runs():
            keeper.end(signal.SIGTERM)
