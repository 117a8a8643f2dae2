"""Parts for a seed's body: their norm and head are near the seed's."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from moerge.errors import IncompatibleExpertError
from moerge.experts.parts import write_parts
from moerge.models.dense_files import DenseFiles
from moerge.models.families.family import FINAL_NORM, HEAD
from moerge.progress import NoProgress
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.seeds import require_near_seed, seed_of
from moerge_coordinator.operation.seeds import register
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import BodyRow
from moerge_proto.experts import Parts
from support.models import expert, seed_model
from support.rows import add_body


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Those of an honest expert of the seed in the folder `seed`."""
    seed_model(tmp_path / "seed", tie_word_embeddings=request.param)
    folder = expert(tmp_path / "expert", 1, tie_word_embeddings=request.param)
    return write_parts(DenseFiles(folder), tmp_path / "parts")


@pytest.fixture
def seed(ports: Ports, parts: Path) -> BodyRow:
    body = register(ports.database, ports.blobs, str(parts.parent / "seed"), NoProgress())
    with ports.database.reading() as session:
        return seed_of(session, Parts(expert="1" * 64, body=body.digest, fitted=True))


def test_only_a_registered_seed_is_found(ports: Ports) -> None:
    with ports.database.transaction("test") as session:
        seed = add_body(session)
        assert seed_of(session, Parts(expert="1" * 64, body=seed.digest, fitted=True)) is seed
        with pytest.raises(RefusedError, match=f"no seed with body {'0' * 64}"):
            seed_of(session, Parts(expert="1" * 64, body="0" * 64, fitted=True))


def test_honest_head_is_near_the_seed(ports: Ports, parts: Path, seed: BodyRow) -> None:
    require_near_seed(ports, DenseFiles(parts), seed, "law's expert")


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        (FINAL_NORM, lambda tensor: tensor.mul_(3), "law's expert differs from the seed seed: 2"),
        (HEAD, lambda tensor: tensor.neg_(), "law's expert differs from the seed seed: 1.9"),
        (HEAD, lambda tensor: tensor[7].mul_(10), "a row of law's expert differs from the seed seed: "),
    ],
    ids=["norm", "head", "row"],
)
def test_head_far_from_the_seed_is_refused(
    ports: Ports, parts: Path, seed: BodyRow, name: str, change: Callable[[Tensor], object], problem: str
) -> None:
    path = parts / "model.safetensors"
    tensors = load_file(path)
    change(tensors[name])
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(IncompatibleExpertError, match=problem) as caught:
        require_near_seed(ports, DenseFiles(parts), seed, "law's expert")
    assert caught.value.where == name
