"""Checkpoints: read lazily by name, written from plans, and every damage named by file and tensor."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

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


def remote(folder: Path, into: Path) -> Checkpoint:
    """The folder's checkpoint, with its weights moved elsewhere and read in ranges."""
    moved = [path.replace(into / path.name) for path in sorted(folder.glob("*.safetensors"))]
    return Checkpoint(folder, {path.name: Elsewhere(path) for path in moved})


class Elsewhere:
    """A file in memory. A read of more than `most` bytes fails."""

    def __init__(self, path: Path, most: int = 2**62) -> None:
        self.name, self.data, self._most = path.name, path.read_bytes(), most
        self.size = len(self.data)

    def read(self, start: int, out: memoryview) -> int:
        assert len(out) <= self._most
        part = self.data[start : start + len(out)]
        out[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("parts", [1, 2])
def test_weights_elsewhere_are_read_tensor_by_tensor(tmp_path: Path, parts: int) -> None:
    folder = tmp_path / "folder"
    model = AutoModelForCausalLM.from_pretrained(expert(tmp_path / "expert", seed=1), dtype="auto")
    model.save_pretrained(folder, max_shard_size="10GB" if parts == 1 else "20KB")
    local = Checkpoint(folder)
    assert (len({spec.file for spec in local.specs.values()}) > 1) == (parts > 1)
    tensors = {name: local.tensor(name).clone() for name in local.specs}
    checkpoint = remote(folder, tmp_path)
    assert checkpoint.specs == local.specs
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in tensors.items())
    require_tensors(checkpoint, read_config(folder))


def test_remote_weights_are_read_one_tensor_at_a_time(tmp_path: Path) -> None:
    tensors = {"none": torch.empty(0, 3), "scalar": torch.tensor(2.0), "matrix": torch.randn(30, 50).to(torch.bfloat16)}
    write(tmp_path / "file", [plan(*item) for item in tensors.items()])
    checkpoint = Checkpoint.of_file(Elsewhere(tmp_path / "file", tensors["matrix"].nbytes))
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint.tensor(name), tensor)
        assert checkpoint.tensor(name).dtype == tensor.dtype


@pytest.mark.parametrize("size", [6, 100, 3071, 3100])
def test_damaged_weights_elsewhere_are_refused_like_local_ones(tmp_path: Path, size: int) -> None:
    write(tmp_path / "file", [plan("a", torch.randn(30, 50))])
    whole = (tmp_path / "file").read_bytes()
    assert len(whole) not in (3071, 3100)
    (tmp_path / "damaged").write_bytes(whole.ljust(size, b"x")[:size])
    for source in (tmp_path / "damaged", Elsewhere(tmp_path / "damaged")):
        with pytest.raises(CheckpointError) as caught:
            Checkpoint.of_file(source)
        assert "damaged" in caught.value.where


def test_weights_that_shrink_while_they_are_read_are_named(tmp_path: Path) -> None:
    write(tmp_path / "file", [plan("a", torch.randn(30, 50))])
    file = Elsewhere(tmp_path / "file")
    checkpoint = Checkpoint.of_file(file)
    file.data = file.data[:1000]
    with pytest.raises(CheckpointError, match="truncated") as caught:
        checkpoint.tensor("a")
    assert caught.value.where == "file: a"


def test_copy_has_the_tensor_values_in_the_requested_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moerge.models.stored._PIECE", 4)
    tensors = {"brain": torch.randn(5, 3).bfloat16(), "single": torch.randn(8), "none": torch.empty(0, 3)}
    write(tmp_path / "a", [plan(*item) for item in tensors.items()])
    checkpoint = Checkpoint(tmp_path / "a")
    for name, tensor in tensors.items():
        for dtype in (torch.float32, torch.bfloat16):
            out = torch.full(tensor.shape, torch.nan, dtype=dtype)
            checkpoint.copy(name, out)
            assert torch.equal(out, tensor.to(dtype))


def test_a_file_larger_than_memory_is_read(tmp_path: Path) -> None:
    """A sparse one of a tebibyte. Linux refuses to map it whole for writing."""
    path, small = tmp_path / "large", torch.arange(4, dtype=torch.float32)
    places = {"small": (0, 16, [4]), "large": (16, 2**40, [(2**40 - 16) // 4])}
    header = {
        name: {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
        for name, (start, end, shape) in places.items()
    }
    body = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(len(body).to_bytes(8, "little") + body + small.numpy().tobytes())
        out.truncate(8 + len(body) + 2**40)
    assert torch.equal(Checkpoint(path).tensor("small"), small)


def test_file_truncated_after_reading_its_header_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, [plan("first", torch.ones(2)), plan("last", torch.ones(3000))])
    checkpoint = Checkpoint(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 8)
    assert torch.equal(checkpoint.tensor("first"), torch.ones(2))
    for read in (checkpoint.tensor, lambda name: checkpoint.copy(name, torch.empty(3000))):
        with pytest.raises(CheckpointError, match="truncated"):
            read("last")


def refusal(folder: Path) -> MoergeError:
    with pytest.raises(CheckpointError) as caught:
        require_tensors(Checkpoint(folder), read_config(folder))
    return caught.value


def test_pickled_weights_are_refused_with_conversion_advice(tmp_path: Path) -> None:
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


def test_missing_extra_or_misshapen_tensors_are_named(tmp_path: Path) -> None:
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


def file_of(tensors: object, body: bytes = b"0" * 8) -> bytes:
    """A safetensors file with this header, as JSON or as bytes."""
    header = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return len(header).to_bytes(8, "little") + header + body


def entry(**fields: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **fields}


ONE = json.dumps(entry()).encode()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\1", id="too short"),
        pytest.param(file_of({"a": entry(data_offsets=[0, 800])}), id="size"),
        pytest.param(file_of({"a": entry(data_offsets=[100, 108])}), id="offset behind the end"),
        pytest.param(file_of({"a": entry(data_offsets=[-8, 0])}), id="negative offset"),
        pytest.param(file_of({"a": entry(), "b": entry()}), id="overlap"),
        pytest.param(file_of({"a": entry(), "b": entry(data_offsets=[16, 24])}, b"0" * 24), id="hole"),
        pytest.param(file_of({"a": entry(dtype="OBJECT")}), id="unknown dtype"),
        pytest.param(file_of({"a": entry(shape=[0, 2**60], data_offsets=[0, 0])}, b""), id="empty and huge"),
        pytest.param(file_of(b'{"a":' + ONE + b',"a":' + ONE + b"}"), id="same key twice"),
        pytest.param(file_of(b'{"__metadata__":{"x":NaN},"a":' + ONE + b"}"), id="NaN in metadata"),
        pytest.param(file_of({"a": entry()}, b"0" * 80), id="bytes of no tensor"),
    ],
)
def test_a_false_header_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    (folder / "model.safetensors").write_bytes(content)
    refusal(folder)


def test_a_tensor_in_two_shards_is_refused_by_name(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    tensors, name = load_file(folder / "model.safetensors"), "model.norm.weight"
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model-0.safetensors")
    save_file({name: torch.zeros(32)}, folder / "model-1.safetensors")
    where = dict.fromkeys(tensors, "model-0.safetensors") | {name: "model-1.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert name in refusal(folder).where
