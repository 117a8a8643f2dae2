"""The mean of the experts (DUME section 2.2, as BTX)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moerge.trunk.methods.method import MethodInputs, elementwise

if TYPE_CHECKING:
    from moerge.trunk.pieces import Rule


def rule(inputs: MethodInputs) -> Rule:
    from moerge.trunk.average import average

    return lambda piece: average(piece.tensors, piece.dtype)


METHOD = elementwise("average", "mean of the experts (DUME)", rule)
