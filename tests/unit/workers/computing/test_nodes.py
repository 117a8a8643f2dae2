"""Two Ray nodes: both need the worker's files, versions and packages."""

import importlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from transformers import LlamaConfig

from moerge.bodies.merge import DENSE_BODY_FILE
from moerge.errors import MoergeError
from moerge.memory.machine import free_bytes
from moerge.models.dense_files import DenseFiles
from moerge.statistics.passes import RouterPass
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.computing.actors import Slots
from moerge_workers.computing.nodes import NodePass, require_same, require_versions, versions
from moerge_workers.watching.events import ActorEvents
from support.models import SMALL, on_body
from support.stages import seeded

SETTINGS = StatisticsSettings()


def body_in(folder: Path) -> Path:
    return folder / "registered" / DENSE_BODY_FILE


def work_in(folder: Path) -> RouterPass:
    return RouterPass(*on_body(folder / "expert", body_in(folder)), [16] * SMALL["num_hidden_layers"])


def test_a_missing_or_other_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    os.utime(path, (1, 1.5))
    require_same(path, (3, 1))
    for seen in ((4, 1), (3, 2)):
        with pytest.raises(MoergeError, match="not the worker's file") as caught:
            require_same(path, seen)
        assert (caught.value.where, caught.value.todo[:17]) == (str(path), "mount the folders")
    path.unlink()
    with pytest.raises(MoergeError, match=f"{path}: the worker's file isn't readable here: No such file"):
        require_same(path, (3, 1))


def test_files_of_expert_and_body_are_compared(tmp_path: Path) -> None:
    seeded(tmp_path)
    expert = tmp_path / "expert"
    files = NodePass.of(work_in(tmp_path), SETTINGS).files
    assert set(files) == {expert / "config.json", expert / "model.safetensors", body_in(tmp_path)}


def test_other_versions_and_too_little_memory_are_refused(tmp_path: Path) -> None:
    require_versions(versions())
    with pytest.raises(MoergeError, match=r"torch is .*; the worker's is 1\.0"):
        require_versions({**versions(), "torch": "1.0"})
    LlamaConfig(intermediate_size=2**30).save_pretrained(tmp_path)
    work = RouterPass(DenseFiles(tmp_path), DenseFiles(tmp_path), [16] * 32)
    if free_bytes("cpu") is not None:
        with pytest.raises(MoergeError, match=r"each of 1 slots needs \d.*; this machine has \d") as caught:
            NodePass(work, SETTINGS, {}, versions()).here()
        assert caught.value.where.startswith(f"node {socket.gethostname()}: ")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an expert and its body, and of the first node's processes."""
    folder = tmp_path_factory.mktemp("first")
    seeded(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes, whose processes run in different folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(first)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False})
        patch.chdir(tmp_path_factory.mktemp("second"))
        cluster.add_node(num_cpus=8)
    yield cluster
    cluster.shutdown()  # type: ignore[no-untyped-call]


class Devices(ActorEvents):
    def __init__(self) -> None:
        self.seen = dict[int, str]()

    def ready(self, slot: int, device: str) -> None:
        self.seen[slot] = device


@pytest.mark.slow
def test_two_nodes_compute_with_files_that_both_see(first: Path, cluster: Cluster) -> None:
    devices = Devices()
    assert Slots(cluster.address, 2, SETTINGS, print, devices).probe(work_in(first)) > 0
    assert devices.seen == dict.fromkeys(range(2), f"cpu of {socket.gethostname()}")


@pytest.mark.slow
def test_a_node_without_the_files_is_named(first: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to a process's folder, only the first node sees them."""
    monkeypatch.chdir(first)
    with pytest.raises(MoergeError, match="isn't readable here: No such file") as caught:
        Slots(cluster.address, 2, SETTINGS, print).probe(work_in(Path("/proc/self/cwd")))
    assert caught.value.where.startswith(f"node {socket.gethostname()}: /proc/self/cwd/")


@pytest.mark.slow
def test_a_node_without_a_package_is_named(
    first: Path, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "newer.py").write_text(
        "from moerge.statistics.passes import RouterPass\nclass Newer(RouterPass): ...\n"
    )
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        newer = importlib.import_module("newer")
    expert = DenseFiles(first / "expert")
    with pytest.raises(MoergeError, match="No module named 'newer'") as caught:
        Slots(cluster.address, 1, SETTINGS, print).probe(newer.Newer(expert, expert, []))
    assert caught.value.where == f"node {cluster.address.partition(':')[0]}"
