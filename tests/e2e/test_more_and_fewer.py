"""Documents come and go between runs of a worker: what counts at the coordinator is what the data holds, once."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from moerge_proto.contributions import Contribution
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.shards import enough
from support.fleet import Member, joined, merge
from support.models import SMALL
from support.processes import Coordinator, coordinator

pytestmark = pytest.mark.slow

WORKER = """
import sys
from moerge.errors import MoergeError
from moerge.progress import LogProgress
from moerge_workers.contribute import run
from moerge_workers.settings import Settings
for line in sys.stdin:
    try:
        run(Settings.model_validate_json(line), LogProgress())
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

    def run(self, **settings: object) -> str:
        """One run of the worker over the folder, in a process that lives on."""
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        given = {
            "coordinator": self.server.url,
            "token": self.member.token,
            "domain": "law",
            "expert": str(self.member.folder),
            "data": [str(self.folder / "data")],
            "home": str(self.folder / "worker"),
            "once": True,
            **settings,
        }
        self.worker.stdin.write(json.dumps(given) + "\n")
        self.worker.stdin.flush()
        return self.worker.stdout.readline().strip()

    def active(self, split: str = "statistics") -> list[Contribution]:
        return [row for row in self.member.client.contributions() if row.active and row.split == split]

    def documents(self, split: str = "statistics") -> int:
        return sum(row.documents for row in self.active(split))

    def shards(self, row: Contribution) -> set[str]:
        with StatisticsFile(self.server.home / "blobs" / row.digest[:2] / row.digest) as file:
            return set(file.manifest.shards)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with coordinator(tmp_path / "home") as server:
        member = joined(server, "law", tmp_path, seed=1)
        merge(server)
        with (tmp_path / "log").open("wb") as log:
            worker = subprocess.Popen(  # noqa: S603  # our own script
                [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        with worker:
            yield House(server, member, worker, tmp_path)
            assert worker.stdin is not None
            worker.stdin.close()
        member.client.close()


def test_law_4_more_documents_are_a_further_contribution_and_fewer_take_the_place_of_all(house: House) -> None:
    house.write("b.jsonl", 0, 150)
    assert house.run() == "ran"
    [first] = house.active()
    assert first.documents == 150

    house.write("b.jsonl", 0, 151)  # less than a shard's worth waits
    assert house.run() == "ran"
    assert house.active() == [first]

    house.write("b.jsonl", 0, 200)
    house.write("a.jsonl", 500, 60)  # sorts before what was sent
    with house.server.client() as operator:
        operator.withdraw_contribution(first.digest)  # so the first must come again, as the same file
    assert house.run() == "ran"
    one, second = house.active()
    assert (one.digest, one.documents, second.documents) == (first.digest, 150, 110)
    assert second.tokens >= enough(int(SMALL["hidden_size"]))
    assert not house.shards(one) & house.shards(second)

    (house.folder / "data" / "a.jsonl").rename(house.folder / "data" / "z.jsonl")  # the same documents
    for kept in (house.folder / "worker" / "contributions").glob("*.safetensors"):  # to save space: they count already
        kept.unlink()
    assert house.run() == "ran"
    assert house.active() == [one, second]

    house.write("z.jsonl", 500, 40)
    house.write("c.jsonl", 900, 10)
    assert house.run() == "ran"
    [whole] = house.active()
    assert whole.documents == 250
    states = {row.digest: row.active for row in house.member.client.contributions()}
    assert states == {first.digest: False, second.digest: False, whole.digest: True}


def test_shares_move_documents_between_splits_and_no_document_is_in_two(house: House) -> None:
    house.write("a.jsonl", 0, 300)
    assert house.run() == "ran"
    assert house.documents() == 300
    assert house.run(tuning_share=0.3, held_out_share=0.2, trunk_contribution=True) == "ran"
    tuning, rest = house.documents("tuning"), house.documents()
    assert 60 <= tuning <= 120
    assert 110 <= rest <= 190
    assert 30 <= 300 - tuning - rest <= 90
    [own] = house.member.client.trunk_contributions()
    assert own.documents == rest  # nothing is sent of what is held out

    assert house.run(trunk_contribution=True) == "ran"
    assert (house.documents("tuning"), house.documents()) == (0, 300)
    assert sum(row.documents for row in house.member.client.trunk_contributions() if row.active) == 300
