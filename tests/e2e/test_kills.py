"""SIGKILL at any moment: worker, actor and coordinator go on, and the bytes are those of undisturbed runs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from moerge.client import Client
from moerge.documents import texts_of
from moerge.errors import CoordinatorError
from moerge.statistics.accumulate import shard_sums
from moerge.trunk.domain_model import domain_model
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.trunks import NewTrunk, Trunk
from moerge_proto.versions import NewVersion
from moerge_proto.workflows import Workflow, WorkflowState
from moerge_workers.identity import read_key
from moerge_workers.journal import Journal
from moerge_workers.shards import batches, plan
from support.fleet import Member, honest, joined, merge, send, trunk_path
from support.models import texts
from support.processes import Coordinator, coordinator, marked
from support.statistics import written

pytestmark = pytest.mark.slow

WORKER = """
import sys
from moerge.progress import LogProgress
from moerge_workers.contribute import run
from moerge_workers.settings import Settings
coordinator, token, domain, expert, data, home = sys.argv[1:]
run(Settings(coordinator=coordinator, token=token, domain=domain, expert=expert, data=[data], home=home,
             once=True, journal_seconds=0), LogProgress())
"""
DOCUMENTS = 6000


# --- workers


@dataclass
class House:
    server: Coordinator
    member: Member
    trunk: Trunk
    data: Path


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    with coordinator(folder / "home") as server:
        member = joined(server, "law", folder, seed=1, num_hidden_layers=6)
        yield House(server, member, merge(server), texts(folder / "texts.jsonl", seed=4, documents=DOCUMENTS))
        member.client.close()


def start(house: House, home: Path) -> subprocess.Popen[bytes]:
    """A worker that journals after every shard, in a process group of its own."""
    arguments = [house.server.url, house.member.token, "law", house.member.folder, house.data, home]
    with (home.parent / f"{home.name}.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603  # our own script
            [sys.executable, "-c", WORKER, *map(str, arguments)],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MOERGE_TEST_MARK": str(home)},
        )


def journal_of(home: Path) -> Path | None:
    return next(iter((home / "contributions").glob("*.safetensors")), None)


def shards_done(home: Path) -> int:
    path = journal_of(home)
    if path is None:
        return 0
    with StatisticsFile(path) as file:
        return len(file.manifest.shards)


def wait_for(condition: Callable[[], bool], worker: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert worker.poll() is None, "the worker ended before it could be killed"
        time.sleep(0.002)


def undisturbed(house: House, home: Path, folder: Path) -> tuple[bytes, int]:
    """The contribution's bytes, computed here without Ray, under the worker's key; and the number of its shards."""
    path = journal_of(home)
    assert path is not None
    with StatisticsFile(path) as file:
        manifest = file.manifest
    model, gains = domain_model(house.member.folder, trunk_path(house.server, house.trunk))
    tokenizer = AutoTokenizer.from_pretrained(house.member.folder)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text)["input_ids"]
        return ids

    journal = Journal(folder / "undisturbed", manifest, 1e9)
    for shard in plan(texts_of([house.data]), encode, manifest.settings, manifest.hidden_size, read_key(home)):
        rows = batches(shard.rows, manifest.settings.batch_tokens)
        journal.add(shard.name, shard_sums(model, gains, manifest.exponents, rows, shard.documents))
    journal.save()
    return (folder / "undisturbed").read_bytes(), len(journal.shards)


@pytest.mark.parametrize("kills", [[1], [2, 20, 60]])
def test_a_worker_killed_among_its_shards_sends_the_bytes_of_one_never_killed(
    house: House, tmp_path: Path, kills: list[int]
) -> None:
    home = tmp_path / "worker"
    for shards in kills:
        worker = start(house, home)
        wait_for(lambda least=shards: shards_done(home) >= least, worker)  # type: ignore[misc]
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    before = shards_done(home)
    expected, total = undisturbed(house, home, tmp_path)
    assert kills[-1] <= before < total, "the kill came too late to test anything"
    assert start(house, home).wait(300) == 0
    path = journal_of(home)
    assert path is not None
    assert path.read_bytes() == expected
    sent = [each for each in house.member.client.contributions() if each.shards == total]
    assert any((house.server.home / "blobs" / each.digest[:2] / each.digest).read_bytes() == expected for each in sent)


def actors(home: Path) -> list[int]:
    return [process for process, command in marked(str(home)).items() if "ray::Slot" in command]


def test_an_actor_killed_among_its_shards_changes_no_byte(house: House, tmp_path: Path) -> None:
    home = tmp_path / "worker"
    worker = start(house, home)
    wait_for(lambda: shards_done(home) >= 3, worker)
    killed = actors(home)
    assert killed
    for process in killed:
        os.kill(process, signal.SIGKILL)
    before = shards_done(home)
    assert worker.wait(300) == 0
    expected, total = undisturbed(house, home, tmp_path)
    assert before < total, "the kill came too late to test anything"
    path = journal_of(home)
    assert path is not None
    assert path.read_bytes() == expected


# --- the coordinator

LARGE: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 8000}
KILLS = 4


def furnish(server: Coordinator, folder: Path) -> list[Member]:
    return [joined(server, domain, folder, seed, **LARGE) for seed, domain in enumerate(("law", "art"), start=1)]


def contribute(server: Coordinator, members: list[Member], trunk: Trunk, folder: Path) -> None:
    for member in members:
        send(member, written(folder / "contribution", *honest(server, member, trunk)))
        member.client.close()


def files_of(server: Coordinator, number: int) -> dict[str, str]:
    with server.client() as operator:
        return {file.name: file.sha256 for file in operator.version(number).files}


def finished(client: Client, id_: str) -> Workflow:
    while (workflow := client.workflow(id_)).state is WorkflowState.RUNNING:
        time.sleep(0.05)
    return workflow


def killed_at(server: Coordinator, delay: float, ask: Callable[[Client], Workflow]) -> tuple[bool, str | None]:
    """Asks for work, kills the coordinator `delay` seconds later, starts it again, and waits for the result.

    Returns whether the work was cut, and its result.
    """
    with server.client() as client:
        id_ = ask(client).id
        time.sleep(delay)
        cut = client.workflow(id_).state is WorkflowState.RUNNING
        server.kill()
    server.start()
    with server.client() as client:
        workflow = finished(client, id_)
    assert workflow.state is WorkflowState.DONE, workflow
    return cut, workflow.result


def timed(server: Coordinator, ask: Callable[[Client], Workflow]) -> float:
    with server.client() as client:
        begin = time.monotonic()
        assert finished(client, ask(client).id).state is WorkflowState.DONE
        return time.monotonic() - begin


def leftovers(server: Coordinator) -> list[Path]:
    hidden = [path for place in ("versions", "experts") for path in (server.home / place).glob(".*")]
    return [*(server.home / "blobs" / "incoming").glob("*"), *hidden]


def test_a_coordinator_killed_in_merge_solve_or_publish_makes_the_undisturbed_version(tmp_path: Path) -> None:
    """Law 3 and 10. The kills are spread over the time that the work takes undisturbed."""
    with coordinator(tmp_path / "calm") as calm:
        members = furnish(calm, tmp_path)
        merging = timed(calm, lambda client: client.merge_trunk(NewTrunk()))
        trunk = merge(calm)
        contribute(calm, members, trunk, tmp_path)
        publishing = timed(calm, lambda client: client.solve_version(NewVersion()))
        expected = files_of(calm, 1)

    cuts = 0
    for kill in range(KILLS):
        folder = tmp_path / f"kill-{kill}"
        folder.mkdir()
        with coordinator(folder / "home") as server:
            members = furnish(server, folder)
            share = kill / KILLS
            cut, digest = killed_at(server, share * merging, lambda client: client.merge_trunk(NewTrunk()))
            assert digest == trunk.digest
            cuts += cut
            contribute(server, members, trunk, folder)
            cut, number = killed_at(server, share * publishing, lambda client: client.solve_version(NewVersion()))
            cuts += cut
            assert number == "1"
            assert files_of(server, 1) == expected
            assert leftovers(server) == []
            with server.client() as client, pytest.raises(CoordinatorError):
                client.version(2)
    assert cuts >= KILLS // 2, f"only {cuts} of {2 * KILLS} kills hit running work"
