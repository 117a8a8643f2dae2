"""The tensors of a body or head, merged piece by piece from open checkpoints."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from moerge.models.dense import body_names, stored_name
from moerge.models.dense_files import Dense
from moerge.models.reader import Tensors
from moerge.models.writer import TensorPlan


@dataclass(frozen=True)
class Piece:
    """The unit of merging: a tensor, or its rows that the same experts have.

    `start` is the first row, `experts` are the numbers of the experts with these rows, and `dtype` is the result's.
    """

    name: str
    start: int
    experts: Sequence[int]
    tensors: Sequence[Tensor]
    dtype: torch.dtype


Rule = Callable[[Piece], Tensor]
"""A pure function from a piece to its merged tensor, in the piece's dtype."""


def merge_plan(checkpoints: Sequence[Tensors], names: Iterable[str], rule: Rule) -> list[TensorPlan]:
    """The merged tensors, in the dense family's names: at most len(checkpoints) + 2 tensors in memory at a time.

    A tensor has the widest of its experts' dtypes. With vocabularies of unequal length, a row is merged from the
    experts that have it. A tied expert's embedding counts as its head.
    """

    def plan(name: str) -> TensorPlan:
        specs = [checkpoint.specs[stored_name(checkpoint, name)] for checkpoint in checkpoints]
        longest = max(specs, key=lambda spec: spec.shape[0])
        dtype = reduce(torch.promote_types, [spec.dtype for spec in specs])
        return TensorPlan(name, dtype, longest.shape, lambda: _merged(checkpoints, name, dtype, rule))

    return [plan(name) for name in sorted(names)]


def body_plan(experts: Sequence[Dense], rule: Rule) -> list[TensorPlan]:
    """The tensors of the experts' body, by `merge_plan`."""
    names = {name for expert in experts for name in body_names(expert)}
    return merge_plan([expert.checkpoint for expert in experts], names, rule)


def _merged(checkpoints: Sequence[Tensors], name: str, dtype: torch.dtype, rule: Rule) -> Tensor:
    tensors = [tensor_of(checkpoint, name) for checkpoint in checkpoints]
    ends = sorted({len(tensor) for tensor in tensors})
    parts = []
    for start, stop in zip([0, *ends], ends, strict=False):
        having = [expert for expert, tensor in enumerate(tensors) if len(tensor) >= stop]
        parts.append(rule(Piece(name, start, having, [tensors[expert][start:stop] for expert in having], dtype)))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def tensor_of(checkpoint: Tensors, name: str) -> Tensor:
    """A tensor of a checkpoint; for a tied head, the embedding."""
    return checkpoint.tensor(stored_name(checkpoint, name))
