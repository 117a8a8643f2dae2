"""Written files are aligned, exact to their plan, and deterministic."""

import io
import json
from threading import Barrier, Lock

import pytest
import torch
from torch import Tensor

from moerge.models.writer import TensorPlan, write_safetensors
from moerge_proto.digests import sha256_hex

DTYPES = [torch.float16, torch.float32, torch.bfloat16, torch.float64]


def plan(name: str, tensor: Tensor) -> TensorPlan:
    return TensorPlan(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)


@pytest.mark.parametrize("name", ["a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "ä"])
def test_every_tensor_starts_at_a_multiple_of_its_item_size(name: str) -> None:
    """Also with odd lengths before it, and whatever the header's length is."""
    out = io.BytesIO()
    plans = [plan(f"{name}{i}", torch.arange(3).to(dtype)) for i, dtype in enumerate(DTYPES)]
    assert write_safetensors(out, plans) == sha256_hex(out.getvalue())
    length = int.from_bytes(out.getvalue()[:8], "little")
    header = json.loads(out.getvalue()[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}  # transformers refuses files without
    for item in plans:
        assert (8 + length + header[item.name]["data_offsets"][0]) % item.dtype.itemsize == 0


@pytest.mark.parametrize("tensor", [torch.zeros(2, dtype=torch.float64), torch.zeros(2, 1), torch.zeros(3)])
def test_tensor_with_unplanned_dtype_or_shape_is_an_error(tensor: Tensor) -> None:
    with pytest.raises(ValueError, match="wrong"):
        write_safetensors(io.BytesIO(), [TensorPlan("wrong", torch.float32, (2,), lambda: tensor)])


def test_parallel_computation_keeps_tensors_and_memory_limit() -> None:
    """A large one is computed alone; those after it side by side."""
    sizes, lock, now, seen, meeting = (4, 1, 1, 1, 1, 2, 3, 4), Lock(), [0], list[int](), Barrier(4, timeout=10)

    def made(number: int, size: int) -> TensorPlan:
        def compute() -> Tensor:
            with lock:
                now[0] += size
                seen.append(now[0])
            if size == 1:
                meeting.wait()
            with lock:
                now[0] -= size
            return torch.full((size,), float(number))

        return TensorPlan(f"{number}", torch.float32, (size,), compute)

    several, one = io.BytesIO(), io.BytesIO()
    write_safetensors(several, [made(*item) for item in enumerate(sizes)], at_once=8)
    write_safetensors(one, [plan(f"{n}", torch.full((size,), float(n))) for n, size in enumerate(sizes)])
    assert several.getvalue() == one.getvalue()
    assert max(seen) == 4


def test_failure_in_parallel_computation_is_raised_by_writer() -> None:
    def failing() -> Tensor:
        raise ValueError("no such gram")

    plans = [plan("large", torch.zeros(4)), *(TensorPlan(name, torch.float32, (2,), failing) for name in "abc")]
    with pytest.raises(ValueError, match="no such gram"):
        write_safetensors(io.BytesIO(), plans, at_once=2)


def test_progress_adds_up_to_the_tensors_bytes() -> None:
    seen: list[int] = []
    write_safetensors(io.BytesIO(), [plan("a", torch.zeros(3)), plan("b", torch.zeros(2, 2).half())], seen.append)
    assert seen == [12, 8]
