"""The coordinators under test: in this process, in one process, and in two on PostgreSQL and S3."""

import shutil
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import uvicorn
from dbos import _dbos

from moerge.blobs.s3 import S3, S3Blobs
from moerge.client.client import Client
from moerge.files import file_sha256
from moerge.progress import NoProgress
from moerge_coordinator.bootstrap import make_app
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.operation.seeds import register
from moerge_coordinator.settings import read_settings
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.stores import stores
from simulation.faults import Fault, Faults, LossyTransport
from support.processes import Coordinator
from support.servers import BUCKET, Postgres, leader, settings


def register_seed(home: Path, seed: Path) -> None:
    """Registers a seed model in a coordinator's home."""
    settings = read_settings(home)
    with closing(open_database(settings.database)) as database:
        register(database, stores(settings)[0], str(seed), NoProgress())


class World(ABC):
    """A coordinator, which may die and restart while a client waits for it."""

    home: Path
    url: str
    operator_token: str
    struck = 0
    """Number of faults that occurred."""
    ahead = 0.0
    """Hours by which the coordinator's clock is ahead."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def apply(self, fault: Fault | None, call: Any) -> Any:
        """The result or error of `call()`, while the fault happens and is repaired."""

    def client(self, token: str) -> Client:
        return Client(self.url, token, patience=60)

    def kept(self) -> dict[str, str]:
        """The name of every blob -> the digest of its content."""
        return {path.name: file_sha256(path) for path in (self.home / "blobs").glob("??/*")}

    def jump(self, hours: float) -> None:  # noqa: B027  # a clock of its own is not every world's
        """Sets the coordinator's clock forward or back."""


class Waiting(threading.Thread):
    """A client's call in a separate thread, so that the coordinator can be restarted meanwhile."""

    def __init__(self, call: Any) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # noqa: BLE001  # handed on
            self.error = error

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class InProcess(World):
    """A real app under a real uvicorn in a thread. A crash ends its threads at their next effect."""

    def __init__(self, home: Path, template: Path, token: str, faults: Faults) -> None:
        shutil.copytree(template, home)
        self.home, self.operator_token, self._faults = home, token, faults
        self._port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @staticmethod
    def template(folder: Path, seed: Path) -> str:
        """Makes a home with a registered seed for all schedules to copy; returns its operator token."""
        secret = initialise(folder).secret
        register_seed(folder, seed)
        return secret

    def start(self) -> None:
        registry = _dbos._get_or_create_dbos_registry()
        registry.instance_info_map.clear()
        registry.dbos = None
        config = uvicorn.Config(
            make_app(read_settings(self.home), clock=self._now), port=self._port, log_level="critical"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                return  # it died while it started; the next start is due
            time.sleep(0.002)
        self._port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def stop(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def _revive(self) -> None:
        self.stop()
        self._faults.bury()
        self.start()

    def client(self, token: str) -> Client:
        return Client(self.url, token, patience=60, timeout=60, transport=LossyTransport(self._faults))

    def apply(self, fault: Fault | None, call: Any) -> Any:
        waiting, before = Waiting(call), self._faults.hits
        with self._faults.during(fault, self.home):
            waiting.start()
            while waiting.is_alive():
                if self._faults.crashed.wait(0.005):
                    self._revive()
        if self._faults.crashed.is_set():
            self._revive()
        self.struck += self._faults.hits - before
        return waiting.outcome()

    def jump(self, hours: float) -> None:
        self.ahead += hours

    def _now(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=self.ahead)


class OfProcesses(World):
    """A real `moerge coordinator serve`, killed with SIGKILL."""

    def __init__(self, home: Path, seed: Path) -> None:
        self._coordinator = Coordinator(home)
        register_seed(home, seed)
        self.home, self.operator_token = home, self._coordinator.operator_token

    def start(self) -> None:
        self._coordinator.start()
        self.url = self._coordinator.url

    def stop(self) -> None:
        self._coordinator.stop()

    def apply(self, fault: Fault | None, call: Any) -> Any:
        """The only fault is the crash: `at` x 7 ms after the operation began."""
        waiting = Waiting(call)
        waiting.start()
        if fault is not None and fault.kind == "crash":
            waiting.join(fault.at * 0.007)
            self._coordinator.kill()
            self.struck += 1
            self._coordinator.start()
        waiting.join()
        return waiting.outcome()


class OfReplicas(World):
    """Two coordinators on one PostgreSQL database and S3 store, called in turn."""

    def __init__(self, folder: Path, seed: Path, postgres: Postgres, store: str) -> None:
        self._database = postgres.database()
        self._place = S3(bucket=BUCKET, endpoint=store, prefix=folder.name.replace("_", "-"))
        self._replicas: list[Coordinator] = []
        for name in ("one", "two"):
            text = settings(f"{self._database}&application_name={name}", self._place)
            token = self._replicas[0].operator_token if self._replicas else None
            self._replicas.append(Coordinator(folder / name, token, text))
        shutil.copy(folder / "one" / "version-key.pem", folder / "two")
        self.home, self.operator_token = folder / "one", self._replicas[0].operator_token
        register_seed(self.home, seed)
        self._turns = cycle(self._replicas)

    def start(self) -> None:
        for replica in self._replicas:
            replica.start()

    def stop(self) -> None:
        for replica in self._replicas:
            replica.stop()

    def client(self, token: str) -> Client:
        self.url = next(self._turns).url
        return super().client(token)

    def apply(self, fault: Fault | None, call: Any) -> Any:
        """The only fault: the leader is killed `at` x 7 ms after the operation began, and another one starts."""
        waiting = Waiting(call)
        waiting.start()
        if fault is not None:
            waiting.join(fault.at * 0.007)
            killed = self._led_by("one", "two")
            killed.kill()
            self.struck += 1
            self._led_by(*{"one", "two"} - {killed.home.name})
            killed.start()
        waiting.join()
        return waiting.outcome()

    def _led_by(self, *names: str) -> Coordinator:
        """Waits for one of these to lead."""
        deadline = time.monotonic() + 60
        while (result := leader(self._database)) is None or result[1] not in names:
            assert time.monotonic() < deadline, f"none of {names} leads"
            time.sleep(0.02)
        return next(replica for replica in self._replicas if replica.home.name == result[1])

    def kept(self) -> dict[str, str]:
        with tempfile.TemporaryDirectory() as cache:
            blobs = S3Blobs(self._place, Path(cache), 2**40)
            return {name: file_sha256(blobs.local(name)) for name, _ in blobs.digests()}
