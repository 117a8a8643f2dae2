"""The base plus trimmed task vectors of one sign: TIES as MergeME uses it (its section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moerge.trunk.methods.method import MethodInputs, elementwise

if TYPE_CHECKING:
    from torch import Tensor

    from moerge.trunk.pieces import Piece, Rule


def _rule(inputs: MethodInputs) -> Rule:
    from moerge.trunk.task_vectors import from_base, ties

    def merge(piece: Piece, base: Tensor) -> Tensor:
        return ties(base, piece.tensors, piece.dtype, inputs.options.retain, inputs.options.scale)

    return from_base(inputs.base, merge)


METHOD = elementwise(
    "ties",
    "base plus trimmed task vectors",
    _rule,
    takes=frozenset({"base", "retain", "scale"}),
    needs=frozenset({"base"}),
    wide_copies=2,
)
