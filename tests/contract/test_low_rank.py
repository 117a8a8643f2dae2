"""A worker sends its expert of low rank as an adapter if the coordinator has its base, else as whole matrices."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from moerge.files import file_sha256
from moerge.models.adapters import WEIGHTS
from moerge.models.expert_folder import DenseExpert
from moerge.models.low_rank import LowRank, low_rank_of
from moerge.models.reader import Checkpoint
from moerge_proto.experts import Expert
from moerge_workers.leaving.history import History, Sending
from support.federation import federation_of
from support.models import expert
from support.worker import worker_of

SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 300}


@dataclass
class Made:
    """A federation's version with an expert of low rank.

    Attributes:
        digest: of the worker's expert.
        row: the expert at the coordinator.
        record: of its MLPs.
        sent: by the worker.
        log: the worker's.
        adapter: bytes of the adapter's weights.
        version: its files' digests by name, and its folder.
    """

    digest: str
    row: Expert
    record: LowRank | None
    sent: list[Sending]
    log: str
    adapter: int
    version: Mapping[str, str]
    folder: Path


def made(folder: Path, *, redistribute: bool) -> Made:
    """The version of an owner whose expert has the other owner's as its base, which it may or may not use."""
    with federation_of(folder, "art", **SMALL) as federation:
        base = federation.members["art"]
        base.allow(redistribute=redistribute)
        member = federation.join("law", expert(folder / "law", 5, **SMALL))
        reduced = {"expert_rank": "3", "base": str(base.folder), "policy": {"router_contributions": False}}
        with worker_of(federation.server, member, folder) as worker:
            worker.write("a.jsonl", 0, 50)
            assert worker.run(**reduced) == "ran"
            [adapter], [dense] = ((worker.home / name).iterdir() for name in ("low-rank", "expert"))
            written = {path: path.stat().st_mtime_ns for place in (adapter, dense) for path in place.iterdir()}
            assert worker.run(**reduced) == "ran"
            assert {path: path.stat().st_mtime_ns for path in written} == written
            with closing(History(worker.home)) as history:
                sent = history.sendings()
            log = worker.log()
        own = DenseExpert("law", dense)
        federation.members["law"] = replace(member, folder=dense)
        federation.contribute(federation.merge())
        version = federation.version(federation.solve().number)
        name = "model.layers.1.mlp.down_proj.weight"
        published = Checkpoint(version).tensor("model.layers.1.block_sparse_moe.experts.1.w2.weight")
        assert published.equal(own.checkpoint.tensor(name))
        files = {path.name: file_sha256(path) for path in version.iterdir()}
        record, size = low_rank_of(dense, own.files), (adapter / WEIGHTS).stat().st_size
        return Made(own.digest, federation.expert("law"), record, sent, log, size, files, version)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("alone"), redistribute=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("whole"), redistribute=False)


def test_only_the_adapter_leaves_and_the_coordinator_makes_the_worker_s_expert(alone: Made) -> None:
    assert alone.row.digest == alone.digest
    assert alone.row.adapter is not None
    assert "the expert's MLPs: base + rank-3 delta" in alone.log
    small, weights = alone.sent
    assert small.item.about.startswith("law: config and tokenizer")
    assert (weights.item.about, weights.item.bytes) == ("law: adapter, 1 file", alone.adapter)
    assert (weights.item.digest, weights.became) == (alone.row.adapter.weights, "arrived")
    [merged] = [file.size for file in alone.row.files if file.name == "model.safetensors"]
    assert alone.record is not None
    saved = 4 * (alone.record.whole - alone.record.numbers)  # float32
    assert merged - weights.item.bytes == pytest.approx(saved, abs=3000)  # headers
    assert saved > merged / 2


def test_without_its_base_the_whole_expert_leaves_and_the_worker_says_what_it_would_save(whole: Made) -> None:
    assert (whole.row.digest, whole.row.adapter) == (whole.digest, None)
    weights = whole.sent[-1].item
    assert (weights.digest, weights.bytes) == (whole.digest, sum(file.size for file in whole.row.files))
    assert "no base of this adapter that you may use, so the whole expert leaves" in whole.log
    assert f"it saves {(weights.bytes - whole.adapter) / 1000:.1f} kB" in whole.log


def test_both_ways_give_the_same_version_byte_for_byte_with_the_record(alone: Made, whole: Made) -> None:
    assert alone.version == whole.version
    assert alone.record is not None
    assert alone.record == whole.record
    card = (alone.folder / "README.md").read_text()
    assert "| MLPs | base + rank-3 delta: law; all others unchanged |" in card
    assert f"of the expert `{alone.record.expert}` and the base `{alone.record.base}`" in card
