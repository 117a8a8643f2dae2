"""An owner's worker in a process that lives on, so that each run costs no start."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moerge_proto.contributions import Contribution
from moerge_proto.statistics_file import StatisticsFile
from support.fleet import Member
from support.processes import Coordinator

WORKER = """
import sys
from moerge.errors import MoergeError
from moerge_workers.contribute import run
from moerge_workers.settings import Settings
for line in sys.stdin:
    try:
        run(Settings.model_validate_json(line))
        print("ran", flush=True)
    except MoergeError as error:
        print(str(error).replace("\\n", " "), flush=True)
"""


@dataclass
class House:
    server: Coordinator
    member: Member
    worker: subprocess.Popen[str]
    folder: Path

    def write(self, name: str, first: int, documents: int) -> None:
        path = self.folder / "data" / name
        path.parent.mkdir(exist_ok=True)
        texts = [f"document {number} {'of the law ' * (number % 7)}" for number in range(first, first + documents)]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    @property
    def home(self) -> Path:
        """The worker's."""
        return self.folder / "worker"

    def given(self, **settings: object) -> dict[str, object]:
        """The worker's settings."""
        return {
            "coordinator": self.server.url,
            "token": self.member.token,
            "domain": "law",
            "expert": str(self.member.folder),
            "data": [str(self.folder / "data")],
            "home": str(self.home),
            "once": True,
            **settings,
        }

    def run(self, **settings: object) -> str:
        """One run of the worker over the folder, in a process that lives on."""
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(json.dumps(self.given(**settings)) + "\n")
        self.worker.stdin.flush()
        return self.worker.stdout.readline().strip()

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
def house_of(server: Coordinator, member: Member, folder: Path) -> Iterator[House]:
    """The house of a member; its worker and its client end with the context."""
    with (folder / "log").open("ab") as log:
        worker = subprocess.Popen(  # noqa: S603  # our own script
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    with worker:
        yield House(server, member, worker, folder)
        assert worker.stdin is not None
        worker.stdin.close()
    member.client.close()
