"""Checkpoints: read lazily by name, written from plans, and every damage named by file and tensor."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moerge.errors import CheckpointError, MoergeError
from moerge.files import atomic_file
from moerge.models.config import read_config
from moerge.models.reader import Checkpoint, require_tensors
from moerge.models.writer import TensorPlan, write_safetensors
from support.models import expert


def plan(name: str, tensor: Tensor) -> TensorPlan:
    return TensorPlan(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)


def write(path: Path, plans: list[TensorPlan]) -> str:
    with atomic_file(path) as out:
        return write_safetensors(out, plans)


def test_what_is_written_is_what_safetensors_reads(tmp_path: Path) -> None:
    """Odd sizes and mixed dtypes too; widest first, so that every tensor is aligned."""
    tensors = {
        "half": torch.arange(3, dtype=torch.float16),
        "single": torch.randn(5, 2),
        "brain": torch.randn(7).to(torch.bfloat16),
        "double": torch.randn(1, dtype=torch.float64),
        "view": torch.randn(4, 6).T,
        "none": torch.empty(0, 3),
    }
    digests = {write(tmp_path / name, [plan(*item) for item in tensors.items()]) for name in ("a", "b")}
    assert len(digests) == 1
    for name, tensor in load_file(tmp_path / "a").items():
        assert torch.equal(tensor, tensors[name])
        assert tensor.dtype == tensors[name].dtype


def test_sharded_and_single_checkpoints_hold_the_same(tmp_path: Path) -> None:
    folder = expert(tmp_path / "single", seed=1)
    tensors = load_file(folder / "model.safetensors")
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    where = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, sharded / file)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    checkpoint = Checkpoint(sharded)
    assert checkpoint.specs.keys() == tensors.keys()
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in tensors.items())


def refusal(folder: Path) -> MoergeError:
    with pytest.raises(CheckpointError) as caught:
        require_tensors(Checkpoint(folder), read_config(folder))
    return caught.value


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(tmp_path)
    assert "save_pretrained" in caught.value.todo


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "missing.safetensors"])
def test_an_index_that_names_no_file_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        Checkpoint(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = expert(tmp_path / "expert", seed=1) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert refusal(path.parent).where == str(path)


def test_a_missing_a_superfluous_and_a_misshapen_tensor_are_named(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    path, name = folder / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(path)
    for changed, what in (
        ({key: value for key, value in tensors.items() if key != name}, "not found"),
        ({**tensors, name: torch.zeros(3, 3)}, "shape"),
    ):
        save_file(changed, path)
        error = refusal(folder)
        assert name in error.where
        assert what in error.what
    save_file({**tensors, "extra": torch.zeros(1)}, path)
    assert "extra" in refusal(folder).where


def test_integer_weights_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"quantised": torch.zeros(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="I8") as caught:
        Checkpoint(tmp_path)
    assert "quantised" in caught.value.where
