"""The mean of the experts, weighted by domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moerge.trunk.methods.method import MethodInputs, elementwise

if TYPE_CHECKING:
    from moerge.trunk.pieces import Rule

_WEIGHTS = frozenset({"weights"})


def _rule(inputs: MethodInputs) -> Rule:
    from moerge.trunk.average import average

    weights = [inputs.options.weights.get(domain, 1.0) for domain in inputs.domains]
    return lambda piece: average(piece.tensors, piece.dtype, [weights[expert] for expert in piece.experts])


METHOD = elementwise("weighted", "weighted mean", _rule, takes=_WEIGHTS, needs=_WEIGHTS)
