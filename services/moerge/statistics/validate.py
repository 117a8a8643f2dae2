"""Checks of a contribution's numbers. Every honest worker meets the bounds."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from moerge.errors import ContributionError
from moerge.statistics.integers import LIMIT, square_of, to_floats
from moerge_proto.statistics_file import Int64, StatisticsFile, Sums

TRACE_SLACK = 1 + 2.0**-7
FLOAT32_EPSILON = 2.0**-24
_AGAIN = "compute the contribution again"


def validate(file: Sums, exponents: Sequence[int], bounds: Sequence[float], *, normalised: bool = True) -> list[str]:
    """Checks every layer of an opened router contribution or a sum of such, and returns warnings. Peak: 12 H^2 bytes.

    Args:
        exponents: the body's fractional bits per layer.
        bounds: per layer, the largest squared norm of a feature divided by its gain.
        normalised: whether features are norms' outputs, nearly all of that squared norm.

    Raises:
        ContributionError: names the layer, the tensor and the exceeded bound.
    """
    require_exponents(file, exponents)
    warnings = []
    for layer, bound in enumerate(bounds):
        gram = f"layers.{layer}.gram"
        trace, factor = _validate_gram(gram, exponents[layer], bound, file)
        for name, cross, tokens in _crosses(file, layer):
            _validate_cross(name, cross, exponents[layer], factor, tokens)
        del factor  # before the next gram is read
        total = file.manifest.tokens * bound
        if normalised and trace < total / 2:
            warnings.append(f"{gram}: trace {trace:.6g} is under half of the expected {total:.6g}")
    return warnings


def validate_means(file: Sums, domain: str, exponents: Sequence[int], bounds: Sequence[float]) -> None:
    """Checks the sum of a domain's features, which is known of a sum without those of the other domains.

    Raises:
        ContributionError: it is longer than so many features can be.
    """
    counts = file.domains[domain]
    for layer, (exponent, bound) in enumerate(zip(exponents, bounds, strict=True)):
        cross, name = file.cross(layer, domain), f"layers.{layer}.cross of {domain!r}"
        _require_room(name, cross)
        norm = float(torch.from_numpy(to_floats(cross, exponent)).norm())
        rounding = counts.shards * math.sqrt(len(cross)) * 2.0 ** -(exponent + 1)
        if norm > (most := TRACE_SLACK * counts.tokens * math.sqrt(bound) + rounding):
            what = f"norm {norm:.6g} exceeds {most:.6g}, the bound of {counts.tokens} tokens with these weights"
            raise ContributionError(what, where=name, todo=_AGAIN)


def validate_grams(file: StatisticsFile, exponents: Sequence[int], bounds: Sequence[float]) -> None:
    """Checks every gram, the largest [N, N], of an opened body or head contribution. Peak: 12 N^2 bytes.

    Args:
        exponents: the expert's fractional bits per gram, in the file's order.
        bounds: per gram, the largest squared norm that the expert's weights allow.

    Raises:
        ContributionError: names the tensor and the exceeded bound.
    """
    require_exponents(file, exponents)
    for name, exponent, bound in zip(file.manifest.grams(), exponents, bounds, strict=True):
        _validate_gram(name, exponent, bound, file)


def require_exponents(file: Sums, exponents: Sequence[int]) -> None:
    """Requires the fractional bits of the expert's weights, per gram."""
    if file.manifest.exponents != list(exponents):
        raise ContributionError("differ from those of the expert's weights", where="manifest.exponents", todo=_AGAIN)


def _require_room(name: str, values: Int64) -> None:
    if values.max() >= LIMIT or values.min() <= -LIMIT:
        raise ContributionError("a value reaches 2**62", where=name, todo="send fewer tokens")


def _validate_gram(name: str, exponent: int, bound: float, file: Sums) -> tuple[float, Tensor]:
    """Returns the trace, and the lower Cholesky factor of the gram with its slack, in the gram's memory."""
    manifest, tokens = file.manifest, file.manifest.tokens
    square = _square(name, exponent, file)
    size = len(square)
    trace, largest = float(square.trace()), tokens * bound
    if trace > TRACE_SLACK * largest:
        raise ContributionError(
            f"trace {trace:.6g} exceeds {largest:.6g}, the bound of {tokens} tokens with these weights",
            where=name,
            todo="correct the token count, or divide the vectors by the norms' gains",
        )
    rounding = sum(item.shards for item in file.domains.values()) * size * 2.0 ** -(exponent + 1)
    steps = manifest.settings.batch  # most products of a micro-batch
    slack = rounding + steps * FLOAT32_EPSILON * trace
    energy = float(torch.linalg.vector_norm(square))
    if trace - size * slack > math.sqrt(tokens) * (energy + math.sqrt(size) * slack):
        raise ContributionError(
            f"has {(trace / energy) ** 2:.4g} equally strong directions, more than its {tokens} tokens can have",
            where=name,
            todo=_AGAIN,
        )
    square.diagonal().add_(slack)
    factor, failed = square.mT, torch.empty((), dtype=torch.int32)  # a column-major result replaces its argument
    torch.linalg.cholesky_ex(factor, out=(factor, failed))
    if int(failed):
        raise ContributionError(
            f"not positive semidefinite (leading minor {int(failed)}), so not a gram", where=name, todo=_AGAIN
        )
    return trace, factor


def _square(name: str, exponent: int, file: Sums) -> Tensor:
    triangle = file.array(name)
    _require_room(name, triangle)
    return square_of(triangle, exponent)


def _crosses(file: Sums, layer: int) -> Iterator[tuple[str, Int64, int]]:
    """Name, sum and tokens of the features, before of each domain, because those of several could cancel each other."""
    name, total = f"layers.{layer}.cross", np.zeros(file.manifest.hidden_size, np.int64)
    for domain, counts in file.domains.items():
        total += (cross := file.cross(layer, domain))
        if len(file.domains) > 1:
            yield f"{name} of {domain!r}", cross, counts.tokens
    yield name, total, file.manifest.tokens


def _validate_cross(name: str, cross: Int64, exponent: int, factor: Tensor, tokens: int) -> None:
    _require_room(name, cross)
    if not cross.any():
        raise ContributionError("the sum of all features is zero", where=name, todo=_AGAIN)
    total = torch.from_numpy(to_floats(cross, exponent))[:, None]
    energy = float(torch.linalg.solve_triangular(factor, total, upper=False).square().sum())
    if energy > TRACE_SLACK * tokens:
        raise ContributionError(
            f"b^T A^-1 b = {energy:.6g} exceeds the {tokens} tokens, so it can't be the sum of this gram's features",
            where=name,
            todo=_AGAIN,
        )
