"""Distances between tensors of experts of one seed model, relative to the smaller norm."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from moerge.errors import IncompatibleExpertError
from moerge.models.dense_files import Dense
from moerge.models.families.family import EMBEDDING, HEAD
from moerge.models.reader import Checkpoint
from moerge.progress import Tracker

ROW_FACTOR = 4
"""Limit of a row of embedding or head, in units of a tensor's limit and an average row's norm; honest: up to 2.2."""
_LEAST_VECTOR = 0.05
"""Least root mean square of vectors (biases, gains) in a relative distance: smaller ones change little."""
UNRELATED = 1.2
"""Least typical distance of models of two seeds, which is 1.41 or more; that of experts of one seed is far below 1."""
_SAMPLED = 16  # matrices
_TINY = 1e-30
_ELEMENTS = 2**24  # of a tensor in float64 at a time


@dataclass(frozen=True)
class Powers:
    """Powers of rows, such as squared norms, [n] float64: of two tensors and of their difference."""

    one: Tensor
    other: Tensor
    apart: Tensor

    @classmethod
    def of(cls, one: Tensor, other: Tensor, by: Callable[[Tensor], Tensor]) -> "Powers":
        """The powers of rows [n, ...] of any dtype. `by` computes those of float64 rows, a block at a time."""
        parts, block = [], max(1, _ELEMENTS * len(one) // one.numel())
        for ours, theirs in zip(one.split(block), other.split(block), strict=True):
            first, second = ours.double(), theirs.double()
            parts.append((by(first), by(second), by(first - second)))
        return cls(*map(torch.cat, zip(*parts, strict=True)))

    def __add__(self, more: "Powers") -> "Powers":
        return Powers(self.one + more.one, self.other + more.other, self.apart + more.apart)

    def __mul__(self, weights: Tensor) -> "Powers":
        return Powers(self.one * weights, self.other * weights, self.apart * weights)

    def split(self, size: int) -> Iterator["Powers"]:
        parts = zip(self.one.split(size), self.other.split(size), self.apart.split(size), strict=True)
        return (Powers(*part) for part in parts)

    def smaller(self) -> float:
        return float(torch.minimum(self.one.sum(), self.other.sum()))

    def distance(self, least: float = 0.0) -> float:
        """The distance of all rows together; `least` is the smallest power in the denominator."""
        return float((self.apart.sum() / (max(self.smaller(), least) + _TINY)).sqrt())

    def size(self) -> float:
        """The larger norm divided by the smaller, minus 1."""
        one, other = self.one.sum() + _TINY, self.other.sum() + _TINY
        return float((torch.maximum(one, other) / torch.minimum(one, other)).sqrt()) - 1

    def row(self, least: float) -> float:
        """The largest distance of one row; `least` as in `distance`."""
        return float((self.apart / torch.minimum(self.one, self.other).clamp_min(least + _TINY)).max().sqrt())


@dataclass(frozen=True)
class Distance:
    """The distance of a tensor from another expert's.

    Attributes:
        whole: norm of the difference, relative to the smaller norm; 1.41 for unrelated tensors.
        row: of the row that differs most, relative to the larger of its smaller norm and an average row's norm; 0
            except for embedding and head.
    """

    whole: float
    row: float = 0.0

    def within(self, limit: float) -> bool:
        return self.whole <= limit and self.row <= ROW_FACTOR * limit


def distance(tensor: Tensor, other: Tensor, *, rows: bool = False) -> Distance:
    """The distance of tensors of equal shape; in vocabularies of unequal length only common rows count."""
    one, two = (item.reshape(len(item) if item.dim() else 1, -1) for item in (tensor, other))
    common = min(len(one), len(two))
    result = Powers.of(one[:common], two[:common], lambda block: block.square().sum(dim=1))
    least = _LEAST_VECTOR**2 * common if tensor.dim() == 1 else 0.0
    return Distance(result.distance(least), result.row(result.smaller() / common) if rows else 0.0)


def typical_distance(one: Checkpoint, other: Checkpoint) -> float:
    """The median distance of some matrices that two models have in common, 0 without any."""
    names = sorted(name for name, spec in one.specs.items() if len(spec.shape) > 1 and name in other.specs)
    some = names[:: max(1, len(names) // _SAMPLED)]
    return median(distance(one.tensor(name), other.tensor(name)).whole for name in some) if some else 0.0


def require_near_others(
    expert: Dense, others: Mapping[str, Checkpoint], limit: float, who: str, tracker: Tracker
) -> None:
    """Requires that each tensor is within `limit` of most of `others`, which are weights by their names in errors.

    Norms are compared by their factors.

    The nearest of one or two others counts, the second nearest of three: one odd expert excludes others only if it is
    the only one. One tensor of two experts is in memory at a time.

    Raises:
        IncompatibleExpertError: names the tensor, `who` and the other expert.
    """
    factors = expert.family.factors
    for name in sorted(expert.checkpoint.specs):
        tensor, distances = factors(name, expert.checkpoint.tensor(name)), []
        for called, other in others.items():
            if name in other.specs:
                theirs = other.tensor(name)
                apart = distance(tensor, factors(name, theirs), rows=name in (EMBEDDING, HEAD))
                distances.append((apart, called))
                tracker.advance(theirs.nbytes)
        distances.sort(key=lambda item: max(item[0].whole, item[0].row / ROW_FACTOR))
        if not distances:
            continue
        nearest, called = distances[(len(distances) - 1) // 2]
        if not nearest.within(limit):
            raise IncompatibleExpertError(
                _difference(nearest, limit, who, called),
                where=name,
                todo="register an expert that was trained from the same seed model; if this expert is right, ask the"
                " operator to withdraw the other, or to raise expert_max_distance in coordinator.toml",
            )


def _difference(nearest: Distance, limit: float, who: str, other: str) -> str:
    if nearest.whole > limit:
        return f"{who} differs from {other} by {nearest.whole:.3g} times the tensor's norm; the limit is {limit:g}"
    most = f"{ROW_FACTOR * limit:g}"
    return f"a row of {who} differs from that of {other} by {nearest.row:.3g} times a row's norm; the limit is {most}"
