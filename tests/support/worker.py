"""An owner's worker in a long-lived process, so that only the first run costs a start."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from moerge.errors import MoergeError
from moerge_proto.contributions import Contribution
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.loop import run
from moerge_workers.settings import Settings
from support.federation import Member
from support.processes import FORKS, Coordinator
from support.stages import in_process


def _serve(requests: Connection, log: Path) -> None:
    """The body of the process: one run of the worker per request."""
    with log.open("ab") as out:
        os.dup2(out.fileno(), sys.stderr.fileno())
    with suppress(EOFError):
        while True:
            settings = Settings.model_validate(requests.recv())
            try:
                run(settings, in_process)
                requests.send("ran")
            except MoergeError as error:
                requests.send(str(error).replace("\n", " "))


@dataclass
class Worker:
    """A member's worker; each run is a message to its process. `seed`: its copy of the registered seed."""

    server: Coordinator
    member: Member
    process: Connection
    folder: Path
    seed: Path
    pid: int = 0

    def write(self, name: str, first: int, documents: int) -> None:
        path = self.folder / "data" / name
        path.parent.mkdir(exist_ok=True)
        texts = [f"document {number} {'of the law ' * (number % 7)}" for number in range(first, first + documents)]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    @property
    def home(self) -> Path:
        """The worker's."""
        return self.folder / "worker"

    def given(self, **settings: Any) -> dict[str, object]:
        """The worker's settings. By default its policy allows 100 documents."""
        return {
            "coordinator": self.server.url,
            "token": self.member.token,
            "domain": "law",
            "expert": str(self.member.folder),
            "seed": str(self.seed),
            "data": [str(self.folder / "data")],
            "home": str(self.home),
            "once": True,
            **settings,
            "policy": {"min_documents": 100, **settings.get("policy", {})},
        }

    def run(self, **settings: Any) -> str:
        """One run of the worker over the folder."""
        self.process.send(self.given(**settings))
        answer: str = self.process.recv()
        return answer

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def active(self, split: str = "statistics") -> list[Contribution]:
        return [row for row in self.member.client.contributions() if row.active and row.split == split]

    def documents(self, split: str = "statistics") -> int:
        return sum(row.documents for row in self.active(split))

    def shards(self, row: Contribution) -> set[str]:
        with StatisticsFile(self.server.home / "blobs" / row.digest[:2] / row.digest) as file:
            return set(file.manifest.shards)


@contextmanager
def worker_of(server: Coordinator, member: Member, folder: Path, seed: Path) -> Iterator[Worker]:
    """The worker of a member, with its data and its home below `folder`, and its copy of the registered seed."""
    ours, its = FORKS.Pipe()
    process = FORKS.Process(target=_serve, args=(its, folder / "log"), daemon=True)
    process.start()
    its.close()
    with ours:
        yield Worker(server, member, ours, folder, seed, process.pid or 0)
    process.join()
