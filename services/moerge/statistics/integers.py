"""Sums as integers: rounded once, added exactly, converted back for the solve."""

import numpy as np
import torch
from numpy.typing import NDArray

from moerge.errors import ContributionError
from moerge_proto.statistics_file import Int64

Float64 = NDArray[np.float64]
LIMIT = 2**62
_PIECE = 2**20  # entries


def to_integers(values: Float64, exponent: int) -> Int64:
    """values * 2**exponent, rounded to nearest (ties to even), int64.

    Raises:
        ContributionError: a value is not finite, or reaches 2**62.
    """
    scaled = np.rint(values * 2.0**exponent)
    if not (np.abs(scaled) < LIMIT).all():  # also false for NaN
        raise ContributionError(
            f"a sum times 2**{exponent} is not a finite number below 2**62",
            todo="check the expert: its features exceed the trunk's bound, or are NaN",
        )
    integers: Int64 = scaled.astype(np.int64)
    return integers


def to_floats(integers: Int64, exponent: int) -> Float64:
    """integers * 2**-exponent in float64; exact below 2**53."""
    return integers.astype(np.float64) * 2.0**-exponent


def add(left: Int64, right: Int64) -> Int64:
    """left + right.

    Raises:
        ContributionError: a sum overflows int64; it never wraps.
    """
    total = left + right
    for start in range(0, len(total), _PIECE):  # so that only the sum is in memory as a whole
        piece = slice(start, start + _PIECE)
        if (((left[piece] ^ total[piece]) & (right[piece] ^ total[piece])) < 0).any():
            raise ContributionError("the sum of the contributions overflows int64", todo="leave out a contribution")
    return total


def pack(square: Float64) -> Float64:
    """[H, H] -> [H(H+1)/2], the upper triangle row by row."""
    return np.concatenate([square[row, row:] for row in range(len(square))])


def unpack(packed: Float64, hidden_size: int) -> Float64:
    """[H(H+1)/2] -> symmetric [H, H]."""
    upper, start = np.zeros((hidden_size, hidden_size)), 0
    for row in range(hidden_size):
        end = start + hidden_size - row
        upper[row, row:] = packed[start:end]
        start = end
    half = torch.from_numpy(upper)
    square = half + half.T
    square.diagonal().mul_(0.5)
    symmetric: Float64 = square.numpy()
    return symmetric


def effective_rank(square: torch.Tensor) -> float:
    """trace^2 / the sum of squared entries of a symmetric [H, H]: the number of about equally strong directions."""
    return float(square.trace() ** 2 / square.square().sum().clamp_min(1e-300))
