"""A worker sends its expert of low rank as whole matrices; versions and their cards have it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from moerge.models.expert_folder import DenseExpert
from moerge.models.low_rank import low_rank_of
from moerge.models.reader import Checkpoint
from support.federation import federation_of
from support.models import adapter, expert
from support.worker import worker_of

SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 300}


def test_a_worker_s_expert_of_low_rank_is_published_with_its_record(tmp_path: Path) -> None:
    with federation_of(tmp_path, "art", **SMALL) as made:
        base = expert(tmp_path / "base", 0, **SMALL)
        own = adapter(tmp_path / "law", made.members["art"].folder, 5)  # its base is registered
        member = made.join("law", own)
        reduced = {"expert_rank": "3", "base": str(base), "policy": {"router_contributions": False}}
        with worker_of(made.server, member, tmp_path) as worker:
            worker.write("a.jsonl", 0, 50)
            assert worker.run(**reduced) == "ran"
            assert "the expert's MLPs: base + rank-3 delta" in worker.log()
            [folder] = (worker.home / "expert").iterdir()
            written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
            assert worker.run(**reduced) == "ran"
            assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written
        dense = DenseExpert("law", folder)
        assert made.expert("law").digest == dense.digest
        record = low_rank_of(folder, dense.files)
        assert record is not None
        assert (record.expert, record.base) == (DenseExpert("law", own).digest, DenseExpert("base", base).digest)

        made.members["law"] = replace(member, folder=folder)
        made.contribute(made.merge())
        version = made.version(made.solve().number)
        name = "model.layers.1.block_sparse_moe.experts.1.w2.weight"
        assert Checkpoint(version).tensor(name).equal(dense.checkpoint.tensor("model.layers.1.mlp.down_proj.weight"))
        assert "| MLPs | base + rank-3 delta: law; all others unchanged |" in (version / "README.md").read_text()
