"""Trunks of local experts."""

from pathlib import Path

from moerge.merging.local import local_trunk
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from support.models import expert


def test_base_method_copies_the_base_tensors_for_any_experts(tmp_path: Path) -> None:
    base, law, art = (
        DenseExpert(name, expert(tmp_path / name, seed)) for seed, name in enumerate(("base", "law", "art"))
    )
    trunk = local_trunk([law, art], tmp_path / "trunk", "base", base=base)
    merged = Checkpoint(trunk.path)
    assert merged.specs
    assert all(merged.tensor(name).equal(base.checkpoint.tensor(name)) for name in merged.specs)
    assert [item.digest for item in trunk.contains] == [base.digest]
    assert trunk.digest == local_trunk([art], tmp_path / "other", "base", base=base).digest
