"""Trunks from task vectors, expert minus base model: TIES and DARE as MergeME uses them (its section 3.1)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from moerge.models.reader import Checkpoint
from moerge.trunk.average import average, elementwise
from moerge.trunk.pieces import Piece, Rule, tensor_of
from moerge_proto.digests import sha256_hex


def from_base(base: Checkpoint | None, merge: Callable[[Piece, Tensor], Tensor]) -> Rule:
    """The rule merge(piece, base's part of it); the average for rows after the end of the base's vocabulary."""

    def rule(piece: Piece) -> Tensor:
        part = None if base is None else tensor_of(base, piece.name)[piece.start :][: len(piece.tensors[0])]
        if part is None or part.shape != piece.tensors[0].shape:
            return average(piece.tensors, piece.dtype)
        return merge(piece, part)

    return rule


def ties(base: Tensor, experts: Sequence[Tensor], dtype: torch.dtype, retain: float, scale: float) -> Tensor:
    """base + scale x the sum of the trimmed task vectors' elements that have the elected sign.

    Trimming keeps the share `retain` of each task vector's largest elements. The elected sign of an element is that of
    the trimmed vectors' sum. Both are per tensor.
    """
    thresholds = [_threshold(base, expert, retain) for expert in experts]

    def combine(parts: Sequence[Tensor]) -> Tensor:
        start, *others = parts
        vectors = torch.stack([other - start for other in others])
        for vector, threshold in zip(vectors, thresholds, strict=True):
            vector[vector.abs() < threshold] = 0
        elected = vectors.sum(dim=0).sign()
        return start + scale * torch.where(vectors.sign() == elected, vectors, 0.0).sum(dim=0)

    return elementwise([base, *experts], dtype, combine)


def _threshold(base: Tensor, expert: Tensor, retain: float) -> float:
    """The smallest magnitude in the share `retain` of the task vector's largest elements."""
    dropped = round((1 - retain) * base.numel())
    if dropped == 0:
        return 0.0
    magnitudes = expert.double().sub_(base).abs_().flatten().numpy()
    magnitudes.partition(dropped)
    return float(magnitudes[dropped])


def dare(base: Tensor, experts: Sequence[Tensor], dtype: torch.dtype, retain: float, scale: float, seed: str) -> Tensor:
    """base + scale x the sum of the task vectors. Each of their elements is kept with probability `retain`
    and then divided by it. Equal seeds give equal trunks.
    """
    generators = [
        torch.Generator().manual_seed(int(sha256_hex(f"{seed} {n}".encode())[:15], 16)) for n in range(len(experts))
    ]

    def combine(parts: Sequence[Tensor]) -> Tensor:
        start, *others = parts
        total = torch.zeros_like(start)
        for other, generator in zip(others, generators, strict=True):
            kept = torch.rand(start.shape, generator=generator) < retain
            total += torch.where(kept, other - start, 0.0) / retain
        return start + scale * total

    return elementwise([base, *experts], dtype, combine)
