"""Merging a trunk, tensor by tensor, from open checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from moerge.models.dense import trunk_names
from moerge.models.families import EMBEDDING, HEAD, Family
from moerge.models.reader import Checkpoint, TensorSpec
from moerge.models.writer import TensorPlan
from moerge.trunk.average import average
from moerge.trunk.task_vectors import dare, ties
from moerge_proto.digests import digest_of
from moerge_proto.trunks import TrunkOptions


@dataclass(frozen=True)
class Piece:
    """What is merged at a time: a tensor, or those of its rows that the same experts have.

    Attributes:
        name: of the tensor, in the dense family's names.
        start: first row; 0 but for vocabularies of unequal length.
        experts: which of the ordered experts have it.
        tensors: theirs, equally shaped.
        dtype: of the trunk's tensor.
    """

    name: str
    start: int
    experts: Sequence[int]
    tensors: Sequence[Tensor]
    dtype: torch.dtype


class Method(Protocol):
    """How the experts' tensors become the trunk's; a pure function of the ordered experts and what it was made with."""

    def __call__(self, piece: Piece) -> Tensor:
        """The merged tensor, in the piece's dtype."""


def elementwise_method(method: str, options: TrunkOptions, weights: Sequence[float], base: Checkpoint | None) -> Method:
    """The method of that name, of those that look at one element at a time.

    Args:
        method: average, base, weighted, ties or dare.
        options: the numbers that it takes.
        weights: one per expert, for `weighted`.
        base: the model that task vectors start from, for `ties` and `dare`.
    """

    def merge(piece: Piece) -> Tensor:
        if method == "weighted":
            return average(piece.tensors, piece.dtype, [weights[expert] for expert in piece.experts])
        start = None if base is None else _rows(base, piece)
        if start is None or method not in ("ties", "dare"):
            return average(piece.tensors, piece.dtype)
        if method == "ties":
            return ties(start, piece.tensors, piece.dtype, options.retain, options.scale)
        seed = f"{options.seed} {piece.name} {piece.start}"
        return dare(start, piece.tensors, piece.dtype, options.retain, options.scale, seed)

    return merge


AVERAGE = elementwise_method("average", TrunkOptions(), [], None)
"""The paper's method."""


def _rows(base: Checkpoint, piece: Piece) -> Tensor | None:
    """The base model's part of a piece; None where its vocabulary ends before."""
    part = _tensor(base, piece.name)[piece.start :][: len(piece.tensors[0])]
    return part if part.shape == piece.tensors[0].shape else None


def merge_plan(
    checkpoints: Sequence[Checkpoint], family: Family, layers: int, method: Method, *, own_head: bool = False
) -> list[TensorPlan]:
    """The trunk's tensors in the dense family's names: at most len(checkpoints) + 2 tensors in memory at a time.

    A tensor has the widest of its experts' dtypes. Where vocabularies differ in length, a row is merged from those
    experts that have it. An expert with a tied head counts with its embedding as head where another has a head of its
    own, or where `own_head` is set.
    """
    names = {name for checkpoint in checkpoints for name in trunk_names(checkpoint, family, layers)}
    if own_head:
        names.add(HEAD)

    def plan(name: str) -> TensorPlan:
        specs = [_source(checkpoint, name)[1] for checkpoint in checkpoints]
        longest = max(specs, key=lambda spec: spec.shape[0])
        dtype = reduce(torch.promote_types, [spec.dtype for spec in specs])
        return TensorPlan(name, dtype, longest.shape, lambda: _merged(checkpoints, name, dtype, method))

    return [plan(name) for name in sorted(names)]


def _merged(checkpoints: Sequence[Checkpoint], name: str, dtype: torch.dtype, method: Method) -> Tensor:
    tensors = [_tensor(each, name) for each in checkpoints]
    ends = sorted({len(tensor) for tensor in tensors})
    parts = []
    for start, stop in zip([0, *ends], ends, strict=False):
        having = [expert for expert, tensor in enumerate(tensors) if len(tensor) >= stop]
        parts.append(method(Piece(name, start, having, [tensors[expert][start:stop] for expert in having], dtype)))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _source(checkpoint: Checkpoint, name: str) -> tuple[str, TensorSpec]:
    if name == HEAD and name not in checkpoint.specs:
        name = EMBEDDING
    return name, checkpoint.specs[name]


def _tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    return checkpoint.tensor(_source(checkpoint, name)[0])


def trunk_digest(lineage: Mapping[str, object], files: Mapping[str, str], exponents: Sequence[int]) -> str:
    """The trunk's name: a digest of all that it was made of and how, and every file's digest."""
    return digest_of({**lineage, "files": dict(files), "exponents": list(exponents)})  # type: ignore[dict-item]
