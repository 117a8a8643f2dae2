"""The base plus task vectors with elements dropped at random: DARE as MergeME uses it (its section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moerge.bodies.methods.average import by_blocks
from moerge.bodies.methods.method import MethodInputs, elementwise
from moerge.bodies.methods.seed import BASE, from_base
from moerge_proto.digests import sha256_hex

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from moerge.bodies.pieces import Piece, Rule


def dare(base: Tensor, experts: Sequence[Tensor], dtype: torch.dtype, retain: float, scale: float, seed: str) -> Tensor:
    """base + scale x the sum of the task vectors. Each of their elements is kept with probability `retain`
    and then divided by it. Equal seeds give equal bodies.
    """
    import torch

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

    return by_blocks([base, *experts], dtype, combine)


def _rule(inputs: MethodInputs) -> Rule:
    options = inputs.options

    def merge(piece: Piece, base: Tensor) -> Tensor:
        seed = f"{options.random_seed} {piece.name} {piece.start}"
        return dare(base, piece.tensors, piece.dtype, options.retain, options.scale, seed)

    return from_base(inputs.base, merge)


METHODS = (
    elementwise(
        "dare",
        "base plus task vectors with dropped elements",
        _rule,
        takes=BASE | {"retain", "scale", "random_seed"},
        needs=BASE,
    ),
)
