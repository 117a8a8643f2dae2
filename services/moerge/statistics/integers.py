"""Sums as integers: rounded once, added exactly, converted back for the solve."""

import math
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moerge.errors import ContributionError
from moerge_proto.statistics_file import Int64

Float64 = NDArray[np.float64]
Number = TypeVar("Number", np.float64, np.int64)
LIMIT = 2**62
_ROWS, _BLOCK = 512, 2**20


def to_integers(values: Float64, exponent: int) -> Int64:
    """values * 2**exponent, rounded to nearest (ties to even), int64.

    Raises:
        ContributionError: a value is not finite, or reaches 2**62.
    """
    scaled = np.rint(values * 2.0**exponent)
    require_fit((np.abs(scaled) < LIMIT).all(), exponent)  # also false for NaN
    integers: Int64 = scaled.astype(np.int64)
    return integers


def require_fit(fits: object, exponent: int) -> None:
    """Raises the ContributionError of `to_integers`, unless its values fit."""
    if not fits:
        raise ContributionError(
            f"a sum times 2**{exponent} is not a finite number below 2**62",
            todo="check the expert: its features exceed the body's bound, or are NaN",
        )


def to_floats(integers: Int64, exponent: int) -> Float64:
    """integers * 2**-exponent, float64; exact below 2**53."""
    floats: Float64 = integers.astype(np.float64)
    floats *= 2.0**-exponent
    return floats


def square_of(integers: Int64, exponent: int) -> Tensor:
    """[H(H+1)/2] int64, an upper triangle -> symmetric [H, H] float64, scaled by 2**-exponent."""
    size = (math.isqrt(8 * len(integers) + 1) - 1) // 2
    return torch.from_numpy(unpack(integers, size)).mul_(2.0**-exponent)


def add(left: Int64, right: Int64) -> Int64:
    """left + right, exact; ContributionError if a sum overflows int64."""
    total = left + right
    for start in range(0, len(total), _BLOCK):
        part = slice(start, start + _BLOCK)
        if (((left[part] ^ total[part]) & (right[part] ^ total[part])) < 0).any():
            raise ContributionError("the sum of the contributions overflows int64", todo="leave out a contribution")
    return total


def pack(square: NDArray[Number]) -> NDArray[Number]:
    """[H, H] -> [H(H+1)/2], the upper triangle row by row."""
    return np.concatenate([square[row, row:] for row in range(len(square))])


def unpack(packed: Float64 | Int64, hidden_size: int) -> Float64:
    """[H(H+1)/2] -> symmetric [H, H] float64, with no other copy in memory."""
    square, start = np.empty((hidden_size, hidden_size)), 0
    for row in range(hidden_size):
        end = start + hidden_size - row
        square[row, row:] = packed[start:end]
        start = end
    for start in range(0, hidden_size, _ROWS):
        rows = square[start : start + _ROWS, start:]
        below = square[start:, start : start + _ROWS]
        below[_ROWS:] = rows[:, _ROWS:].T
        lower = np.tril_indices(len(rows), -1)
        below[lower] = rows.T[lower]
    return square


def effective_rank(square: Tensor) -> float:
    """trace^2 / the sum of squared entries of a symmetric [H, H]: the number of about equally strong directions."""
    return float(square.trace() ** 2 / torch.linalg.vector_norm(square).square().clamp_min(1e-300))
