"""Bodies of local experts."""

from pathlib import Path

from moerge.merging.local import local_body
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from support.models import expert


def test_base_method_copies_the_base_tensors_for_any_experts(tmp_path: Path) -> None:
    base, law, art = (
        DenseExpert(name, expert(tmp_path / name, seed)) for seed, name in enumerate(("base", "law", "art"))
    )
    body = local_body([law, art], tmp_path / "body", "base", base=base)
    merged = Checkpoint(body.path)
    assert merged.specs
    assert all(merged.tensor(name).equal(base.checkpoint.tensor(name)) for name in merged.specs)
    assert [item.digest for item in body.contains] == [base.digest]
    assert body.digest == local_body([art], tmp_path / "other", "base", base=base).digest
