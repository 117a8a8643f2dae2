"""Bodies and versions of local experts."""

from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.merging.local import local_body, local_version
from moerge.models.dense import body_names
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from moerge_proto.bodies import BodyOptions
from support.models import expert


def experts(folder: Path, *names: str) -> list[DenseExpert]:
    return [DenseExpert(name, expert(folder / name, seed)) for seed, name in enumerate(names)]


def test_the_seed_s_body_is_its_own_whatever_the_experts(tmp_path: Path) -> None:
    seed, law, art = experts(tmp_path, "seed", "law", "art")
    body = local_body([law, art], tmp_path / "body", "seed", base=seed)
    copied = Checkpoint(body.path)
    assert sorted(copied.specs) == body_names(seed)
    assert all(copied.tensor(name).equal(seed.checkpoint.tensor(name)) for name in copied.specs)
    assert body.contains == []
    assert body.digest == local_body([art], tmp_path / "other", "seed", base=seed).digest
    assert body.digest != local_body([law, art], tmp_path / "body", "seed", base=law).digest


def test_a_seed_s_body_needs_the_seed_and_takes_no_options(tmp_path: Path) -> None:
    seed, law = experts(tmp_path, "seed", "law")
    with pytest.raises(MoergeError, match="needs the seed model") as raised:
        local_body([law], tmp_path / "body", "seed")
    assert raised.value.where == "`base`"
    with pytest.raises(MoergeError, match="doesn't take this option"):
        local_body([law], tmp_path / "body", "seed", options=BodyOptions(weights={"law": 2.0}), base=seed)
    assert not (tmp_path / "body").exists()


def test_a_solved_head_needs_a_contribution_per_expert(tmp_path: Path) -> None:
    law, art = experts(tmp_path, "law", "art")
    body = local_body([law, art], tmp_path / "body", "average")
    with pytest.raises(MoergeError, match="0 head contributions of 2 experts"):
        local_version([law, art], body, [])
    assert local_version([law, art], body, [], head="average")[0].head.contributions == []
    with pytest.raises(MoergeError, match="the seed's head under a body by 'average'"):
        local_version([law, art], body, [], head="seed")
