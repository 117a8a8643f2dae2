"""The seed's own body, and the rule of methods that start from a base model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moerge.bodies.methods.average import average
from moerge.bodies.methods.method import Method, MethodInputs
from moerge.errors import MoergeError

if TYPE_CHECKING:
    from torch import Tensor

    from moerge.bodies.pieces import Piece, Rule
    from moerge.models.reader import Checkpoint
    from moerge.models.writer import TensorPlan

BASE = frozenset({"base"})


def from_base(base: Checkpoint | None, merge: Callable[[Piece, Tensor], Tensor]) -> Rule:
    """The rule merge(piece, base's part of it); the average for rows after the end of the base's vocabulary."""

    from moerge.bodies.pieces import tensor_of

    def rule(piece: Piece) -> Tensor:
        part = None if base is None else tensor_of(base, piece.name)[piece.start :][: len(piece.tensors[0])]
        if part is None or part.shape != piece.tensors[0].shape:
            return average(piece.tensors, piece.dtype)
        return merge(piece, part)

    return rule


def _not_merged(inputs: MethodInputs) -> list[TensorPlan]:
    raise MoergeError("a seed's body is not merged", where="method", todo="register the seed, or name it as `base`")


METHODS = (Method("seed", "the seed's own, unchanged", _not_merged, is_seed=True),)
