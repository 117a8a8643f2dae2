"""Shards over two Ray nodes: a node without the expert and the trunk gets copies, and a lost one changes nothing."""

import importlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.cluster_utils import Cluster
from transformers import LlamaConfig

from moerge.documents.shards import Shard
from moerge.errors import MoergeError
from moerge.memory.machine import free_bytes
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import expert_files
from moerge.models.tokens import Tokens
from moerge.statistics.passes import RouterPass
from moerge.statistics.windows import Window
from moerge.trunk.merge import DENSE_TRUNK_FILE
from moerge_proto.statistics_file import Int64, StatisticsSettings
from moerge_workers.computing.actors import Slots
from moerge_workers.computing.copies import Original, Reader, here, seen
from moerge_workers.computing.nodes import NodePass, build, originals, require_build, require_memory
from support.models import SMALL, on_trunk
from support.passes import sums_of
from support.stages import own_trunk

MOST = 2**24  # bytes of a file that are all compared
SETTINGS = StatisticsSettings()
LAYERS = SMALL["num_hidden_layers"]


def large(path: Path, changed: int | None = None) -> Path:
    """A sparse file, with one other byte."""
    with path.open("wb") as file:
        file.truncate(2 * MOST + 10_000)
        if changed is not None:
            file.seek(changed)
            file.write(b"x")
    return path


@pytest.mark.parametrize("changed", [0, MOST - 1, MOST, 2 * MOST + 9_999])
def test_a_file_of_equal_size_with_other_bytes_is_not_the_same(tmp_path: Path, changed: int) -> None:
    file = seen(large(tmp_path / "a"))
    assert file.is_here()
    large(tmp_path / "a", changed)
    assert not file.is_here()
    (tmp_path / "a").unlink()
    assert not file.is_here()


class Elsewhere(Reader):
    """Another machine's files: those of a folder that was renamed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(list(folder.iterdir()))
        self._folder = folder

    def sha256(self, path: Path) -> str:
        return super().sha256(self._folder / path.name)

    def piece(self, path: Path, start: int) -> bytes:
        return super().piece(self._folder / path.name, start)


def test_copy_is_private_made_once_and_removed_when_unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, there = tmp_path / "expert", tmp_path / "there"
    folder.mkdir()
    paths = [large(folder / "a.safetensors", 40_000_000 - 2**23), large(folder / "b.safetensors", 5)]
    whole, file = Original.of(folder, paths), Original.of(paths[0], paths[:1])
    assert here(whole, Reader([])) == folder

    folder.rename(there)
    source = Elsewhere(there)
    copy = here(whole, source)
    for name in ("a.safetensors", "b.safetensors"):
        assert (copy / name).read_bytes() == (there / name).read_bytes()
    assert copy.stat().st_mode & 0o077 == 0
    [(_, told)] = source.copies().items()
    assert told == (sum(item.size for item in whole.files),) * 2
    before = (copy / "a.safetensors").stat()
    (copy / "b.safetensors").unlink()  # of a copy that was killed
    assert here(whole, source) == copy
    assert (copy / "a.safetensors").stat().st_ino == before.st_ino
    one = here(file, source)
    assert one.name == "a.safetensors"
    os.utime(copy, (0, 0))
    here(file, source)
    assert [path.name for path in copy.parent.iterdir() if path.is_dir()] == [one.parent.name]
    with pytest.raises(MoergeError, match="can't read this file"):
        Reader([]).piece(there / "a.safetensors", 0)


def test_relative_paths_are_the_worker_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's processes run in other folders."""
    folder = own_trunk(tmp_path)
    monkeypatch.chdir(folder)
    relative = RouterPass(*on_trunk(Path("expert"), Path(DENSE_TRUNK_FILE)), [16] * LAYERS)
    assert originals(relative) == originals(
        RouterPass(
            *on_trunk(folder / "expert", folder / DENSE_TRUNK_FILE),
            [16] * LAYERS,
        )
    )


def test_a_node_without_room_for_the_copies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache" / "moerge" / "nodes"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache.parent.mkdir(parents=True)
    cache.touch()  # a file in the place of the folder
    own = own_trunk(tmp_path / "own") / "expert"
    work = RouterPass(DenseFiles(own), DenseFiles(own), [16] * LAYERS)
    given = originals(work)
    there = own.rename(tmp_path / "there")
    with pytest.raises(MoergeError, match="can't write a copy") as caught:
        NodePass(work, given, Elsewhere(there), SETTINGS, build()).here()
    assert caught.value.where.startswith(f"node {socket.gethostname()}: {cache}")
    cache.unlink()
    copy = NodePass(work, given, Elsewhere(there), SETTINGS, build()).here()
    assert expert_files(copy.expert).keys() == expert_files(DenseFiles(there)).keys()


def test_other_versions_and_too_little_memory_are_refused(tmp_path: Path) -> None:
    require_build(build())
    with pytest.raises(MoergeError, match=r"torch is .*; the worker's is 1\.0"):
        require_build({**build(), "torch": "1.0"})
    LlamaConfig(intermediate_size=2**30).save_pretrained(tmp_path)
    work = RouterPass(DenseFiles(tmp_path), DenseFiles(tmp_path), [16] * 32)
    if free_bytes("cpu") is not None:
        with pytest.raises(MoergeError, match=r"each of 1 slots needs \d.*; this machine has \d"):
            require_memory(work, SETTINGS)


@dataclass
class Nodes:
    """Two nodes. Relative to a process's folder, only those of the first see the expert and its trunk."""

    first: Path
    second: Path
    cluster: Cluster
    other: Any

    @property
    def work(self) -> RouterPass:
        here = Path("/proc/self/cwd")
        return RouterPass(*on_trunk(here / "expert", here / DENSE_TRUNK_FILE), [16] * LAYERS)

    def slots(self, say: Callable[[str], None], **given: Any) -> Slots:
        return Slots(self.cluster.address, 2, SETTINGS, say, **given)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Cluster]]:
    folder = own_trunk(tmp_path_factory.mktemp("first"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False})
    yield folder, cluster
    cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture
def nodes(head: tuple[Path, Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    first, cluster = head
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        other = cluster.add_node(num_cpus=8)
    monkeypatch.chdir(first)
    return Nodes(first, tmp_path, cluster, other)


def test_a_node_without_a_package_is_named(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "newer.py").write_text(
        "from moerge.statistics.passes import RouterPass\nclass Newer(RouterPass): ...\n"
    )
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        newer = importlib.import_module("newer")
    with pytest.raises(MoergeError, match="No module named 'newer'") as caught:
        replace(nodes.slots(print), slots=1).probe(
            newer.Newer(DenseFiles(nodes.first / "expert"), DenseFiles(nodes.first / "expert"), [])
        )
    assert caught.value.where == f"node {nodes.cluster.address.partition(':')[0]}"
    nodes.cluster.remove_node(nodes.other)


@dataclass
class Seen:
    """The actors' events, by slot."""

    devices: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    gone: list[int] = field(default_factory=list)

    def ready(self, slot: int, device: str) -> None:
        self.devices[slot] = device

    def finished(self, slot: int, tokens: int) -> None:
        self.done.add(slot)

    def lost(self, slot: int) -> None:
        self.gone.append(slot)


ROWS = [[Tokens([(7 * row + 3 * place) % 90 for place in range(300)]) for row in range(20 + kind)] for kind in range(5)]


def test_two_nodes_compute_shards_despite_the_loss_of_one(nodes: Nodes) -> None:
    said, events, killed = list[str](), Seen(), False

    def given() -> Iterator[Window]:
        """They end after the loss of the node."""
        for number in range(4000):
            shard = Shard(str(number), ROWS[number % 5], 1)
            yield Window([shard], [frozenset([shard.name])] * LAYERS, nodes.first / "none.states", "", 1e9)
            if events.gone and number % 5 == 4:
                return

    result: dict[int, dict[str, Int64]] = {}
    for done in nodes.slots(said.append, events=events).compute(nodes.work, given()):
        if done.sums is None:  # kept before the loss of the node that began this window
            continue
        arrays = result.setdefault(int(done.window.shards[0].name), {})
        assert not arrays.keys() & done.sums.arrays.keys()
        arrays |= done.sums.arrays
        if len(events.done) == 2 and not killed:
            nodes.other.kill_raylet()
            killed = True
    assert events.gone
    assert set(events.devices.values()) == {f"cpu of {socket.gethostname()}"}
    assert sorted(result) == list(range(len(result)))
    expected = [sums_of(nodes.work, rows, SETTINGS.batch_tokens, 1).arrays for rows in ROWS]
    for number, arrays in result.items():
        assert list(arrays) == list(expected[number % 5])
        assert all(np.array_equal(array, arrays[name]) for name, array in expected[number % 5].items())
    assert [line.split(" doesn't have ")[1].split()[0] for line in said[:2]] == [
        str(nodes.work.expert.folder),
        str(nodes.work.trunk.checkpoint.path),
    ]
    copies = list(nodes.second.glob("cache/moerge/nodes/*/*"))
    assert {copy.name for copy in copies} >= {"config.json", "model.safetensors", DENSE_TRUNK_FILE}
    for copy in copies:
        assert copy.read_bytes() == next(nodes.first.rglob(copy.name)).read_bytes()
