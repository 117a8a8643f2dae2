"""What a contribution's numbers must satisfy if they come from features. Every bound lets an honest worker pass."""

from collections.abc import Sequence

import numpy as np
import torch

from moerge.errors import ContributionError
from moerge.statistics.fixed_point import LIMIT, to_floats, unpack
from moerge_proto.statistics_file import Int64, StatisticsFile

TRACE_SLACK = 1 + 2.0**-7
FLOAT32_EPSILON = 2.0**-24


def validate(file: StatisticsFile, exponents: Sequence[int], nonzero_gains: Sequence[int]) -> list[str]:
    """Checks every layer of an opened statistics file and returns warnings.

    Args:
        exponents: the trunk's fractional bits per layer.
        nonzero_gains: per layer, how many of the H gains are not zero; a zero gain's feature is zero.

    Raises:
        ContributionError: names the layer and tensor, and the bound that it breaks.
    """
    manifest = file.manifest
    if manifest.exponents != list(exponents):
        raise ContributionError(
            "differ from the trunk's", where="manifest.exponents", todo="contribute under this trunk"
        )
    warnings = []
    for layer, (gram, cross) in enumerate(file.layers()):
        warnings += _validate_layer(layer, gram, cross, exponents[layer], nonzero_gains[layer], file)
    return warnings


def _validate_layer(
    layer: int, gram: Int64, cross: Int64, exponent: int, nonzero_gains: int, file: StatisticsFile
) -> list[str]:
    manifest = file.manifest
    hidden, tokens = manifest.hidden_size, manifest.tokens
    for part, values in (("gram", gram), ("cross", cross)):
        if (values >= LIMIT).any() or (values <= -LIMIT).any():
            raise ContributionError("a value reaches 2**62", where=f"layers.{layer}.{part}", todo="send fewer tokens")
    square = unpack(to_floats(gram, exponent), hidden)
    trace, expected = float(np.trace(square)), tokens * nonzero_gains
    if trace > TRACE_SLACK * expected:
        raise ContributionError(
            f"trace {trace:.6g} exceeds the {expected:.6g} of {tokens} tokens with {nonzero_gains} normalised features",
            where=f"layers.{layer}.gram",
            todo="the token count is wrong, or the features were not divided by the trunk's gains",
        )
    rounding = len(manifest.shards) * hidden * 2.0 ** -(exponent + 1)
    steps = max(manifest.settings.batch_tokens, manifest.settings.context)  # a micro-batch holds no more products
    slack = rounding + steps * FLOAT32_EPSILON * trace
    factor, failed = torch.linalg.cholesky_ex(torch.from_numpy(square) + slack * torch.eye(hidden, dtype=torch.float64))
    if int(failed):
        raise ContributionError(
            f"not positive semidefinite (leading minor {int(failed)}), so not a gram",
            where=f"layers.{layer}.gram",
            todo="compute the contribution again",
        )
    total = torch.from_numpy(to_floats(cross, exponent))[:, None]
    energy = float((total * torch.cholesky_solve(total, factor)).sum())
    if energy > TRACE_SLACK * tokens:
        raise ContributionError(
            f"b^T A^-1 b = {energy:.6g} exceeds the {tokens} tokens, so it is no sum of this gram's features",
            where=f"layers.{layer}.cross",
            todo="compute the contribution again",
        )
    if trace < expected / 2:
        return [f"layers.{layer}.gram: trace {trace:.6g} is under half of the expected {expected:.6g}"]
    return []
