"""An owner's worker as killable processes, and its expected bytes."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from multiprocessing.context import ForkServerProcess
from operator import add
from pathlib import Path

from transformers import AutoTokenizer

from moerge.documents.shards import enough, plan
from moerge.models.tokens import Tokens
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.passes import RouterPass
from moerge_proto.bodies import Body
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.data.documents import read_key
from support.documents import texts_of
from support.federation import Member, body_path, federation_of
from support.models import on_body, texts
from support.passes import sums_of
from support.processes import Coordinator, ended, marked, start_worker
from support.statistics import written

WORKER = """
import json, sys
from moerge.errors import MoergeError
from moerge_workers.loop import run
from moerge_workers.settings import Settings
try:
    run(Settings(**json.loads(sys.argv[1])))
except MoergeError as error:
    sys.exit(str(error))
"""
DOCUMENTS = 6000
LAYERS, HIDDEN = 6, 96
SHARD_BYTES = 5 * HIDDEN * enough(HIDDEN)
"""Of a shard's hidden states, with some padding."""


@dataclass
class Owner:
    """One coordinator with a seed, one owner, and its data.

    A worker has a shard in each window, unless a test wishes otherwise.
    """

    server: Coordinator
    seed: Path
    member: Member
    body: Body
    data: Path
    _sums: list[ShardSums] = field(default_factory=list)

    def start(self, home: Path, **settings: object) -> ForkServerProcess:
        """A worker in its own process group; its child processes have the home as their mark."""
        given = {
            "coordinator": self.server.url,
            "token": self.member.token,
            "domain": "law",
            "expert": self.member.folder,
            "seed": self.seed,
            "fit": False,
            "data": [str(self.data)],
            "home": home,
            "once": True,
            "journal_seconds": 0,
            "host_memory": SHARD_BYTES,
            "policy": {"head_contributions": False, "min_documents": 100},
            **settings,
        }
        return start_worker([json.dumps(given, default=str)], {"MOERGE_TEST_MARK": str(home)}, log_of(home), WORKER)

    def require_undisturbed(self, home: Path) -> int:
        """Requires that the worker of this home sent the same bytes as an undisturbed one; returns its shards.

        That is computed here without Ray, under the worker's key. The key names the shards and decides nothing else,
        so their sums are computed once.
        """
        path = journal_of(home)
        assert path is not None
        with StatisticsFile(path) as file:
            manifest = file.manifest
        work = RouterPass(
            *on_body(self.member.folder, body_path(self.server, self.body)),
            manifest.exponents,
        )
        tokenizer = AutoTokenizer.from_pretrained(self.member.folder)

        def encode(text: str) -> Tokens:
            return Tokens(tokenizer(text)["input_ids"])

        expected = home / "undisturbed"
        named: dict[str, ShardSums] = {}
        shards = plan(texts_of([self.data]), encode, manifest.settings, manifest.hidden_size, read_key(home))
        for number, shard in enumerate(shards):
            if number == len(self._sums):
                self._sums.append(sums_of(work, shard.rows, manifest.settings.batch_tokens, shard.documents))
            named[shard.name] = self._sums[number]
        every = reduce(add, named.values())
        counts = {"tokens": every.tokens, "documents": every.documents, "shards": sorted(named)}
        written(expected, manifest.model_copy(update=counts), every)
        assert path.read_bytes() == expected.read_bytes()
        digests = [
            contribution.digest
            for contribution in self.member.client.contributions()
            if contribution.shards == len(named)
        ]
        kept = [self.server.home / "blobs" / digest[:2] / digest for digest in digests]
        assert any(blob.read_bytes() == expected.read_bytes() for blob in kept)
        return len(named)


@contextmanager
def owner_of(folder: Path, documents: int = DOCUMENTS) -> Iterator[Owner]:
    with federation_of(folder, "law", num_hidden_layers=LAYERS, hidden_size=HIDDEN) as made:
        data = texts(folder / "texts.jsonl", seed=4, documents=documents)
        yield Owner(made.server, made.seed, made.members["law"], made.body(), data)


def log_of(home: Path) -> Path:
    return home.with_name(f"{home.name}.log")


def journal_of(home: Path) -> Path | None:
    return next(iter((home / "contributions").glob("*.safetensors")), None)


def shards_done(home: Path) -> int:
    """The number of shards in every layer's sums."""
    if (path := journal_of(home)) is not None:
        with StatisticsFile(path) as file:
            return len(file.manifest.shards)
    done = layers_done(home)
    return min(done) if len(done) == LAYERS else 0


def layers_done(home: Path) -> list[int]:
    """The number of shards in the journal of each begun layer."""
    done: list[int] = []
    for path in sorted((home / "contributions").glob("*.part")):
        layer = int(path.suffixes[-2][1:])
        with suppress(FileNotFoundError), StatisticsFile(path, range(layer, layer + 1)) as file:
            done.append(len(file.manifest.shards))
    return done


def wait_for(condition: Callable[[], bool], worker: ForkServerProcess, seconds: float = 300) -> None:
    """Waits for the condition; the worker must still run."""
    end = time.monotonic() + seconds
    while not condition():
        assert worker.is_alive(), "the worker ended too early"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def processes(home: Path, name: str) -> list[int]:
    """Child processes of this home's worker, by a part of their command."""
    return [process for process, command in marked(str(home)).items() if name in command]


def kill(home: Path, name: str) -> int:
    """Sends SIGKILL to all of them; returns their number."""
    result = processes(home, name)
    for process in result:
        _kill(process)
    return len(result)


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_group(worker: ForkServerProcess) -> None:
    """Kills the worker with its process group, if it has one already."""
    assert worker.pid is not None
    if worker.is_alive():
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.kill()
    ended(worker, 60)


def end(worker: ForkServerProcess, home: Path) -> None:
    """Kills the worker and all its child processes."""
    kill_group(worker)
    deadline = time.monotonic() + 60
    while kill(home, ""):
        assert time.monotonic() < deadline
        time.sleep(0.02)
