"""Killed worker, actor, node, lost coordinator, full disk: the worker goes on, and sends the undisturbed bytes."""

import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from kills.owner import (
    LAYERS,
    SHARD_BYTES,
    Owner,
    end,
    kill,
    kill_group,
    layers_done,
    log_of,
    owner_of,
    processes,
    shards_done,
    wait_for,
)
from kills.schedules import play
from moerge.files import file_sha256
from moerge_proto.experts import ExpertState
from support.federation import federation_of
from support.models import expert, texts
from support.processes import ended

ACTOR, RAYLET = "ray::Slot", "raylet/raylet"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    with owner_of(tmp_path_factory.mktemp("kills")) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "worker"


def test_worker_killed_between_shards_sends_the_same_bytes(place: Owner, home: Path) -> None:
    kills = 1, 10
    for shards in kills:
        worker = place.start(home)
        wait_for(lambda least=shards: shards_done(home) >= least, worker)  # type: ignore[misc]
        kill_group(worker)
    before = shards_done(home)
    assert ended(place.start(home), 300) == 0
    assert kills[-1] <= before < place.require_undisturbed(home), "the kill came too late to test anything"


def test_worker_killed_between_layers_sends_the_same_bytes(place: Owner, home: Path) -> None:
    """All shards are in one window, whose hidden states are saved."""
    for layers in (1, 4):
        worker = place.start(home, host_memory=None)
        wait_for(lambda least=layers: len(layers_done(home)) >= least, worker)  # type: ignore[misc]
        kill_group(worker)
    assert 4 <= len(layers_done(home)) < LAYERS, "the kill came too late to test anything"
    assert len(set(layers_done(home))) == 1
    assert list((home / "contributions").glob("*.states"))
    assert ended(place.start(home, host_memory=None), 300) == 0
    place.require_undisturbed(home)
    assert layers_done(home) == []
    assert list((home / "contributions").glob("*.states")) == []


def test_a_killed_actor_and_then_node_change_no_byte(place: Owner, home: Path) -> None:
    """Actors can outlive their raylet, and small sums need no shared memory, so a lost node loses both."""
    worker, before = place.start(home), 0
    for victims, said in ([ACTOR], "a Ray actor was lost"), ([ACTOR, RAYLET], "Ray was lost"):
        wait_for(lambda least=before + 3: shards_done(home) >= least, worker)  # type: ignore[misc]
        for victim in victims:
            assert kill(home, victim)
        before = shards_done(home)
        wait_for(lambda said=said: said in log_of(home).read_text(), worker)  # type: ignore[misc]
    assert ended(worker, 300) == 0, log_of(home).read_text()
    assert before < place.require_undisturbed(home), "the kill came too late to test anything"


def test_a_lost_coordinator_is_waited_for_and_computing_goes_on(place: Owner, home: Path) -> None:
    """It is killed while shards are computed, and answers again only when all are done."""
    worker = place.start(home)
    wait_for(lambda: shards_done(home) >= 1, worker)
    place.server.kill()
    try:
        assert shards_done(home) < 25
        wait_for(lambda: "waiting for it" in log_of(home).read_text(), worker)
        whole = shards_done(home)
    finally:
        place.server.start()
    assert ended(worker, 120) == 0
    assert whole == place.require_undisturbed(home)
    assert "answers again" in log_of(home).read_text()


def test_full_disk_is_reported_and_restart_sends_same_bytes(place: Owner, home: Path) -> None:
    """The limit on a file's size is what a process can be given of a full disk."""
    worker = place.start(home)
    wait_for(lambda: shards_done(home) >= 3, worker)
    assert worker.pid is not None
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
    assert ended(worker, 60) == 1
    path = next((home / "contributions").glob("*.part"))
    assert path.stat().st_size > 20_000
    said = log_of(home).read_text()
    assert re.search(r"\.\d\.part: the disk is full", said)
    assert "what to do: free space, or move `home` to a larger disk" in said
    assert [item.name for item in path.parent.glob(".*")] == []
    before = shards_done(home)
    assert ended(place.start(home), 300) == 0
    assert 3 <= before < place.require_undisturbed(home)


def left(home: Path) -> dict[str, str]:
    """Path -> digest of the parts and statistics files of a home."""
    paths = [*(home / "parts").rglob("*.safetensors"), *(home / "contributions").glob("*.safetensors")]
    return {str(path.relative_to(home)): file_sha256(path) for path in paths}


def test_worker_killed_as_it_fits_and_joins_under_a_seed_sends_the_same_bytes(tmp_path: Path) -> None:
    """Killed during the fit, after it, and during the sums of routers; compared with the dry run of a second home."""
    home, other = tmp_path / "worker", tmp_path / "other"
    shape: dict[str, Any] = {"num_hidden_layers": LAYERS, "hidden_size": 96}
    with federation_of(tmp_path, **shape) as made:
        law = made.join("law", expert(tmp_path / "law", 1, **shape))
        place = Owner(made.server, made.seed, law, made.body(), texts(tmp_path / "texts.jsonl", seed=4, documents=600))
        settings: dict[str, Any] = {"fit": None, "policy": {"min_documents": 100}, "host_memory": None}
        moments = (
            lambda: len(list(home.glob("parts/*/.*/fitted-*.part"))) >= 2,
            lambda: any(home.glob("parts/*/fitted-*")),
            lambda: "router contribution" in log_of(home).read_text() or layers_done(home) != [],
        )
        for reached in moments:
            worker = place.start(home, **settings)
            wait_for(reached, worker)
            end(worker, home)
        assert ended(place.start(home, **settings), 300) == 0, log_of(home).read_text()
        [row] = law.client.experts()
        assert row.state is ExpertState.READY
        sent = [list(law.client.contributions(kind)) for kind in ("head", "router")]
        assert [len(rows) for rows in sent] == [1, 1]
        other.mkdir()
        shutil.copy(home / "key", other / "key")
        assert ended(place.start(other, dry_run=True, **settings), 300) == 0, log_of(other).read_text()
    assert left(home) == left(other)
    assert {row.digest for rows in sent for row in rows} < set(left(home).values())
    assert len(left(home)) == 4, "parts, router sums, head sums under the expert's digest and under the parts'"


def nodes(home: Path) -> set[int]:
    """The raylets whose actors compute."""
    return {_parent(process) for process in processes(home, ACTOR)}


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_two_nodes_compute_the_same_bytes_also_if_one_is_killed(
    place: Owner, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOERGE_TEST_MARK", str(home))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        killed = cluster.add_node(num_cpus=1)
        worker = place.start(home, ray_address=cluster.address, slots=2, host_memory=2 * SHARD_BYTES)
        wait_for(lambda: shards_done(home) >= 3 and len(nodes(home)) == 2, worker)
        before = shards_done(home)
        killed.kill_raylet()
        assert ended(worker, 300) == 0, log_of(home).read_text()
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
    assert before < place.require_undisturbed(home), "the kill came too late to test anything"


@pytest.mark.parametrize("seed", [7, 12])
def test_random_kills_change_no_byte(place: Owner, tmp_path: Path, seed: int) -> None:
    """A fixed set, of early kills; `python -m kills` plays as many others as one likes."""
    assert play(place, tmp_path / "worker", seed).struck
