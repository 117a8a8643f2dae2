"""The base plus trimmed task vectors, expert minus base, of one sign: TIES as MergeME uses it (its section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moerge.bodies.methods.average import by_blocks
from moerge.bodies.methods.method import MethodInputs, elementwise
from moerge.bodies.methods.seed import BASE, from_base

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from moerge.bodies.pieces import Piece, Rule


def ties(base: Tensor, experts: Sequence[Tensor], dtype: torch.dtype, retain: float, scale: float) -> Tensor:
    """base + scale x the sum of the trimmed task vectors' elements that have the elected sign.

    Trimming keeps the share `retain` of each task vector's largest elements. The elected sign of an element is that of
    the trimmed vectors' sum. Both are per tensor.
    """
    import torch

    thresholds = [_threshold(base, expert, retain) for expert in experts]

    def combine(parts: Sequence[Tensor]) -> Tensor:
        start, *others = parts
        vectors = torch.stack([other - start for other in others])
        for vector, threshold in zip(vectors, thresholds, strict=True):
            vector[vector.abs() < threshold] = 0
        elected = vectors.sum(dim=0).sign()
        return start + scale * torch.where(vectors.sign() == elected, vectors, 0.0).sum(dim=0)

    return by_blocks([base, *experts], dtype, combine)


def _threshold(base: Tensor, expert: Tensor, retain: float) -> float:
    """The smallest magnitude in the share `retain` of the task vector's largest elements."""
    dropped = round((1 - retain) * base.numel())
    if dropped == 0:
        return 0.0
    magnitudes = expert.double().sub_(base).abs_().flatten().numpy()
    magnitudes.partition(dropped)
    return float(magnitudes[dropped])


def _rule(inputs: MethodInputs) -> Rule:
    def merge(piece: Piece, base: Tensor) -> Tensor:
        return ties(base, piece.tensors, piece.dtype, inputs.options.retain, inputs.options.scale)

    return from_base(inputs.base, merge)


METHODS = (
    elementwise(
        "ties",
        "base plus trimmed task vectors",
        _rule,
        takes=BASE | {"retain", "scale"},
        needs=BASE,
        wide_copies=2,
    ),
)
