"""Copies between host memory and a device, beside the device's computations.

A GPU has a stream for each direction. On a CPU a thread stands for each, so that the same order of steps is tested.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

Mark = Any
"""A point in a stream's work: an event of a GPU, or a future."""


class Transfers(Protocol):
    """Copies in both directions; those of one direction run in order."""

    def mark(self) -> Mark:
        """The point behind the computations that this thread has begun."""

    def follow(self, mark: Mark) -> None:
        """Lets the computations that this thread begins from now on wait for a mark."""

    def wait(self, mark: Mark) -> None:
        """Waits on the host."""

    def load(self, target: Tensor, source: Tensor, after: Mark) -> Mark:
        """Copies host memory to the device behind a mark."""

    def store(self, target: Tensor, source: Tensor, after: Mark) -> Mark:
        """Copies the device's memory to the host's behind a mark."""

    def host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Empty host memory, from and to which copies run beside computations; PyTorch takes a power of two."""


class GpuTransfers:
    """`Transfers` of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loads, self._stores = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def mark(self) -> Mark:
        return torch.cuda.current_stream(self._device).record_event()

    def follow(self, mark: Mark) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def wait(self, mark: Mark) -> None:
        mark.synchronize()

    def load(self, target: Tensor, source: Tensor, after: Mark) -> Mark:
        return _streamed(self._loads, target, source, after)

    def store(self, target: Tensor, source: Tensor, after: Mark) -> Mark:
        return _streamed(self._stores, target, source, after)

    def host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)


class CpuTransfers:
    """`Transfers` of a CPU, where a computation is over when its call returns."""

    def __init__(self) -> None:
        self._loads, self._stores = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._over: Future[None] = Future()
        self._over.set_result(None)

    def mark(self) -> Mark:
        return self._over

    def follow(self, mark: Mark) -> None:
        mark.result()

    wait = follow

    def load(self, target: Tensor, source: Tensor, after: Mark) -> Mark:
        return self._loads.submit(_copied, target, source, after)

    def store(self, target: Tensor, source: Tensor, after: Mark) -> Mark:
        return self._stores.submit(_copied, target, source, after)

    def host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)


def transfers_of(device: torch.device) -> Transfers:
    return GpuTransfers(device) if device.type == "cuda" else CpuTransfers()


@torch.inference_mode()
def _streamed(stream: torch.cuda.Stream, target: Tensor, source: Tensor, after: Mark) -> Mark:
    with torch.cuda.stream(stream):
        stream.wait_event(after)
        target.copy_(source, non_blocking=True)
        return stream.record_event()


@torch.inference_mode()
def _copied(target: Tensor, source: Tensor, after: Mark) -> None:
    after.result()
    target.copy_(source)
