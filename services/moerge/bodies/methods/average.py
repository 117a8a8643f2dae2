"""The paper's body: the mean over experts (DUME section 2.2, as BTX), with optional weights by domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moerge.bodies.methods.method import MethodInputs, elementwise

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from moerge.bodies.pieces import Rule

_BLOCK = 2**16  # elements; float64 copies of these fit a processor's cache
_WEIGHTS = frozenset({"weights"})


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
            summed = summed.add(part, alpha=share)
        return summed / total

    return by_blocks(tensors, dtype, mean)


def by_blocks(tensors: Sequence[Tensor], dtype: torch.dtype, combine: Callable[[Sequence[Tensor]], Tensor]) -> Tensor:
    """combine(parts) over equally shaped tensors, block by block of their float64 elements, always the same blocks."""
    merged = tensors[0].new_empty(tensors[0].shape, dtype=dtype)
    flat, out = [tensor.reshape(-1) for tensor in tensors], merged.view(-1)
    for start in range(0, out.numel(), _BLOCK):
        stop = min(start + _BLOCK, out.numel())
        out[start:stop] = combine([elements[start:stop].double() for elements in flat])
    return merged


def plain(inputs: MethodInputs) -> Rule:
    """The rule of equal weights."""
    return lambda piece: average(piece.tensors, piece.dtype)


def _weighted(inputs: MethodInputs) -> Rule:
    weights = [inputs.options.weights.get(domain, 1.0) for domain in inputs.domains]
    return lambda piece: average(piece.tensors, piece.dtype, [weights[expert] for expert in piece.experts])


METHODS = (
    elementwise("average", "mean of the experts (DUME)", plain),
    elementwise("weighted", "weighted mean", _weighted, takes=_WEIGHTS, needs=_WEIGHTS),
)
