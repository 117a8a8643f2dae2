"""How far an expert's weights lie from other experts' of the same seed model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moerge.errors import IncompatibleExpertError
from moerge.models.families import EMBEDDING, HEAD
from moerge.models.reader import Checkpoint
from moerge.progress import Tracker

ROW_FACTOR = 4
"""A row of embedding or head may be so many times further away than a tensor, in norms of an average row.

Measured: up to 2.2 times further in honest experts."""
_LEAST_VECTOR = 0.05
"""Root mean square below which vectors (biases, gains) count as this large: so small, they change little."""
_ROWS = 4096


@dataclass(frozen=True)
class Distance:
    """How far a tensor lies from another expert's.

    Attributes:
        whole: norm of the difference, by the smaller of both norms; 1.41 for tensors that have nothing in common.
        row: of the row that differs most, by the smaller of both norms, or by an average row's if that is larger.
            0 for all tensors but embedding and head.
    """

    whole: float
    row: float = 0.0

    def within(self, limit: float) -> bool:
        return self.whole <= limit and self.row <= ROW_FACTOR * limit


def distance(tensor: Tensor, other: Tensor, *, rows: bool = False) -> Distance:
    """The distance of tensors of equal shape; of vocabularies of unequal length only common rows count."""
    common = min(len(tensor), len(other)) if tensor.dim() else 1
    sums, largest, pieces = torch.zeros(3, dtype=torch.float64), 0.0, list[Tensor]()
    for one, two in zip(_pieces(tensor, common), _pieces(other, common), strict=True):
        squares = torch.stack([each.pow(2).sum(dim=1) for each in (one - two, one, two)])  # [3, rows]
        sums += squares.sum(dim=1)
        if rows:
            pieces.append(squares.sqrt())
    apart, *norms = sums.sqrt().tolist()
    if rows:
        differences, *own = torch.cat(pieces, dim=1)
        average = min(norms) / common**0.5
        largest = float((differences / torch.minimum(*own).clamp_min(max(average, 1e-30))).max())
    least = _LEAST_VECTOR * common**0.5 if tensor.dim() == 1 else 1e-30
    return Distance(apart / max(min(norms), least), largest)


def _pieces(tensor: Tensor, common: int) -> Iterator[Tensor]:
    """Its first rows as float64 [rows, any], a few at a time."""
    if tensor.dim() < 2:
        yield tensor.reshape(-1, 1)[:common].double()
        return
    for start in range(0, common, _ROWS):
        yield tensor[start : min(start + _ROWS, common)].flatten(1).double()


def require_near_others(
    expert: Checkpoint, others: Mapping[str, Checkpoint], limit: float, who: str, tracker: Tracker
) -> None:
    """Requires that no tensor lies further than `limit` from most of the other experts'; see `Distance`.

    Most: of one or two others, the nearest counts; of three, the second. So one odd expert shuts out no further one,
    unless it is the only one. One tensor of two experts is in memory at a time.

    Args:
        others: what to call them in errors -> their weights.
        who: what to call the expert.

    Raises:
        IncompatibleExpertError: names the tensor, and both experts.
    """
    for name in sorted(expert.specs):
        tensor, found = expert.tensor(name), []
        for called, other in others.items():
            if name in other.specs:
                theirs = other.tensor(name)
                found.append((distance(tensor, theirs, rows=name in (EMBEDDING, HEAD)), called))
                tracker.advance(theirs.nbytes)
        found.sort(key=lambda each: max(each[0].whole, each[0].row / ROW_FACTOR))
        if not found:
            continue
        nearest, called = found[(len(found) - 1) // 2]
        if not nearest.within(limit):
            raise IncompatibleExpertError(
                _told(nearest, limit, who, called),
                where=name,
                todo="register an expert that was trained from the same seed model; if this one is right, the operator"
                " withdraws the other, or raises expert_max_distance in coordinator.toml",
            )


def _told(found: Distance, limit: float, who: str, other: str) -> str:
    if found.whole > limit:
        return f"{who} differs from {other} by {found.whole:.3g} times the tensor's norm; the limit is {limit:g}"
    most = f"{ROW_FACTOR * limit:g}"
    return f"a row of {who} differs from that of {other} by {found.row:.3g} times a row's norm; the limit is {most}"
