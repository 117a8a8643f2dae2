"""Discrete Gaussian noise by integer arithmetic alone, from a cryptographic generator.

Exact rejection sampling of Canonne, Kamath and Steinke (arXiv 2004.00010, algorithms 1 to 3), on whole arrays. The
deviation is a power of two, so that every probability is a fraction with few bits.
"""

import os
from typing import Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from moerge_proto.statistics_file import Int64

BITS = 26
SIGMA: int = 1 << BITS
"""The deviation of the noise; sums are on a grid on which it is enough."""
_TAIL = 40  # deviations; what lies beyond, a document moved included, has a probability below 2**-500
_BLOCK = 2**18

Words = NDArray[np.uint64]


class Generator:
    """Uniform integers by AES-256 in counter mode, under a key of the system's randomness."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    @classmethod
    def secret(cls) -> Self:
        return cls(os.urandom(32))

    def words(self, count: int) -> Words:
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)

    def bits(self, count: int, bits: int) -> Int64:
        """Uniform in [0, 2**bits), for at most 63 bits."""
        return (self.words(count) >> np.uint64(64 - bits)).astype(np.int64)

    def one_in(self, whole: int, count: int) -> NDArray[np.bool_]:
        """True with probability 1 / whole."""
        limit = np.uint64(2**64 // whole * whole - 1)
        words = self.words(count)
        while (outside := words > limit).any():
            words = words.copy()
            words[outside] = self.words(int(outside.sum()))
        result: NDArray[np.bool_] = words % np.uint64(whole) == 0
        return result


def discrete_gaussian(count: int, generator: Generator) -> Int64:
    """[count] independent samples: x with probability proportional to exp(-x^2 / (2 SIGMA^2))."""
    result, done = np.empty(count, dtype=np.int64), 0
    while done < count:
        samples = _accepted(min(_BLOCK, 3 * (count - done) + 64), generator)[: count - done]
        result[done : done + len(samples)] = samples
        done += len(samples)
    return result


def _accepted(count: int, generator: Generator) -> Int64:
    """Samples of `count` proposals, discrete Laplace of scale SIGMA (algorithm 3)."""
    proposed = _laplace(count, generator)
    away = np.abs(proposed) - SIGMA
    whole, rest = np.divmod(away * away, 1 << (2 * BITS + 1))
    accepted = _exp_minus(rest, 2 * BITS + 1, generator)
    left = np.flatnonzero(accepted & (whole > 0))
    while len(left):
        lost = ~_exp_minus_one(len(left), generator)
        accepted[left[lost]] = False
        whole[left] -= 1
        left = left[~lost & (whole[left] > 0)]
    return proposed[accepted]


def _laplace(count: int, generator: Generator) -> Int64:
    """Samples of `count` proposals: x with probability proportional to exp(-|x| / SIGMA) (algorithm 2)."""
    below = generator.bits(count, BITS)
    below = below[_exp_minus(below, BITS, generator)]
    times, left = np.zeros(len(below), dtype=np.int64), np.arange(len(below))
    while len(left):
        left = left[_exp_minus_one(len(left), generator)]
        times[left] += 1
    size = below + (times << BITS)
    negative = generator.bits(len(size), 1) == 1
    kept = (times < _TAIL) & ~(negative & (size == 0))
    result: Int64 = np.where(negative, -size, size)[kept]
    return result


def _exp_minus_one(count: int, generator: Generator) -> NDArray[np.bool_]:
    return _exp_minus(np.ones(count, dtype=np.int64), 0, generator)


def _exp_minus(numerators: Int64, bits: int, generator: Generator) -> NDArray[np.bool_]:
    """True with probability exp(-numerator / 2**bits), for fractions of at most 1 (algorithm 1)."""
    result, left, k = np.empty(len(numerators), dtype=np.bool_), np.arange(len(numerators)), 1
    while len(left):
        goes_on = generator.one_in(k, len(left)) if k > 1 else np.ones(len(left), dtype=np.bool_)
        if bits:
            goes_on &= generator.bits(len(left), bits) < numerators[left]
        result[left[~goes_on]] = k % 2
        left, k = left[goes_on], k + 1
    return result
