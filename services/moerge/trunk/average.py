"""The paper's trunk: the mean over experts (DUME section 2.2, as BTX), with optional weights."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_BLOCK = 2**16  # elements; float64 copies of these fit a processor's cache


def average(tensors: Sequence[Tensor], dtype: torch.dtype, weights: Sequence[float] | None = None) -> Tensor:
    """Elementwise mean of equally shaped tensors, summed in float64 in the order given.

    Args:
        tensors: at least one.
        dtype: of the result.
        weights: one per tensor, not all zero; equal by default.
    """
    shares = [1.0] * len(tensors) if weights is None else list(weights)
    total = sum(shares)

    def mean(parts: Sequence[Tensor]) -> Tensor:
        summed = parts[0] * shares[0]
        for part, share in zip(parts[1:], shares[1:], strict=True):
            summed = torch.add(summed, part, alpha=share)
        return summed / total

    return elementwise(tensors, dtype, mean)


def elementwise(tensors: Sequence[Tensor], dtype: torch.dtype, combine: Callable[[Sequence[Tensor]], Tensor]) -> Tensor:
    """combine(parts) over equally shaped tensors, block by block of their float64 elements, always the same blocks."""
    merged = torch.empty(tensors[0].shape, dtype=dtype)
    flat, out = [tensor.reshape(-1) for tensor in tensors], merged.view(-1)
    for start in range(0, out.numel(), _BLOCK):
        stop = min(start + _BLOCK, out.numel())
        out[start:stop] = combine([each[start:stop].double() for each in flat])
    return merged
