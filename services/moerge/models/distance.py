"""The distance between models of one seed, relative to the smaller norm."""

from statistics import median

from torch import Tensor

from moerge.models.reader import Checkpoint

UNRELATED = 1.2
"""Least typical distance of models of two seeds, which is 1.41 or more; that of experts of one seed is far below 1."""
_SAMPLED = 16  # matrices
_TINY = 1e-30


def typical_distance(one: Checkpoint, other: Checkpoint) -> float:
    """The median distance of some matrices that two models have in common, 0 without any."""
    names = sorted(name for name, spec in one.specs.items() if len(spec.shape) > 1 and name in other.specs)
    some = names[:: max(1, len(names) // _SAMPLED)]
    return median(_distance(one.tensor(name), other.tensor(name)) for name in some) if some else 0.0


def _distance(tensor: Tensor, other: Tensor) -> float:
    """The norm of the difference, relative to the smaller norm; of unequal vocabularies only common rows count."""
    common = min(len(tensor), len(other))
    one, two = tensor[:common].double(), other[:common].double()
    return float((one - two).norm() / (min(one.norm(), two.norm()) + _TINY))
