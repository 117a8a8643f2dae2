"""Safetensors files written one tensor at a time, from a plan."""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import torch
from torch import Tensor

from moerge.models.dense import stored_name
from moerge.models.reader import Checkpoint
from moerge.models.stored import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorPlan:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    compute: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()

    @property
    def parts(self) -> "Sequence[TensorPlan]":
        return [self]


@dataclass(frozen=True)
class StackedPlan:
    """A tensor [count, rows, columns] of smaller ones of one dtype, which are written one after another.

    Attributes:
        parts: plans of [n, columns] each; the rows of each next `len(parts) / count` are one of the `count`.
    """

    name: str
    count: int
    parts: Sequence[TensorPlan]

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        rows = sum(part.shape[0] for part in self.parts) // self.count
        return self.count, rows, self.parts[0].shape[1]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


def copies(checkpoint: Checkpoint, names: Iterable[str]) -> list[TensorPlan]:
    """The plans of a checkpoint's tensors, unchanged, in this order; a tied head has the embedding's rows."""
    places = {name: stored_name(checkpoint, name) for name in names}
    return [
        TensorPlan(name, (at := checkpoint.specs[stored]).dtype, at.shape, partial(checkpoint.tensor, stored))
        for name, stored in places.items()
    ]


def write_safetensors(
    out: BinaryIO,
    plans: Sequence[TensorPlan | StackedPlan],
    written: Callable[[int], None] | None = None,
    metadata: Mapping[str, str] | None = None,
    at_once: int = 1,
) -> str:
    """Writes `plans` in order as one safetensors file and returns its SHA-256. Equal tensors give equal files.

    The next tensor, or part of a stacked one, is computed while one is written: two are in memory. With `at_once`, so
    many are computed at a time, together not larger than the largest. `written` gets each one's bytes; `metadata` is
    added to the header's.

    Raises:
        ValueError: a computed tensor doesn't match its plan.
    """
    parts, header = [part for plan in _ordered(plans) for part in plan.parts], safetensors_header(plans, metadata)
    digest = hashlib.sha256(header)
    out.write(header)
    pending: list[Future[Any]] = []
    with ThreadPoolExecutor(2) as threads:
        for plan, tensor in _ahead(parts, at_once):
            _finish(pending)
            data = tensor.flatten().view(torch.uint8).numpy().data
            pending = [threads.submit(digest.update, data), threads.submit(out.write, data)]
            if written is not None:
                written(plan.bytes)
        _finish(pending)
    return digest.hexdigest()


def safetensors_header(plans: Sequence[TensorPlan | StackedPlan], metadata: Mapping[str, str] | None = None) -> bytes:
    """The beginning of the file that `write_safetensors` writes, before the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    offset = 0
    for plan in _ordered(plans):
        end = offset + plan.bytes
        header[plan.name] = {"dtype": _NAMES[plan.dtype], "shape": plan.shape, "data_offsets": [offset, end]}
        offset = end
    body = json.dumps(header, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body


def _ordered(plans: Sequence[TensorPlan | StackedPlan]) -> list[TensorPlan | StackedPlan]:
    """The order of a file: the widest dtype first keeps every tensor aligned."""
    return sorted(plans, key=lambda plan: -plan.dtype.itemsize)


def _ahead(plans: Sequence[TensorPlan], at_once: int) -> Iterator[tuple[TensorPlan, Tensor]]:
    """The tensors in order. Large ones are computed in this thread, so that an interruption ends them."""
    if at_once == 1:
        yield from ((plan, _computed(plan)) for plan in plans)
        return
    room, running = max((plan.bytes for plan in plans), default=0), deque[tuple[TensorPlan, Future[Tensor]]]()
    threads = ThreadPoolExecutor(at_once)
    try:
        for plan in plans:
            is_large = 2 * plan.bytes > room
            while running and (
                is_large or len(running) == at_once or plan.bytes + sum(item.bytes for item, _ in running) > room
            ):
                first, future = running.popleft()
                yield first, future.result()
            if is_large:
                yield plan, _computed(plan)
            else:
                running.append((plan, threads.submit(_computed, plan)))
        while running:
            first, future = running.popleft()
            yield first, future.result()
    finally:
        threads.shutdown(cancel_futures=True)


def _computed(plan: TensorPlan) -> Tensor:
    tensor = plan.compute().contiguous()
    if tensor.dtype != plan.dtype or tuple(tensor.shape) != plan.shape:
        raise ValueError(f"{plan.name}: planned {plan.dtype} {plan.shape}, got {tensor.dtype} {tuple(tensor.shape)}")
    return tensor


def _finish(pending: Sequence[Future[Any]]) -> None:
    wait(pending)
    for item in pending:
        item.result()
