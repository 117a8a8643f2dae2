"""The base plus task vectors with elements dropped at random: DARE as MergeME uses it (its section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moerge.trunk.methods.method import MethodInputs, elementwise

if TYPE_CHECKING:
    from torch import Tensor

    from moerge.trunk.pieces import Piece, Rule


def _rule(inputs: MethodInputs) -> Rule:
    from moerge.trunk.task_vectors import dare, from_base

    options = inputs.options

    def merge(piece: Piece, base: Tensor) -> Tensor:
        seed = f"{options.seed} {piece.name} {piece.start}"
        return dare(base, piece.tensors, piece.dtype, options.retain, options.scale, seed)

    return from_base(inputs.base, merge)


METHOD = elementwise(
    "dare",
    "base plus task vectors with dropped elements",
    _rule,
    takes=frozenset({"base", "retain", "scale", "seed"}),
    needs=frozenset({"base"}),
)
