"""From contributions to one layer's ridge system, one contribution in memory at a time."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from moerge.errors import ContributionError
from moerge.statistics.integers import add, to_floats, unpack
from moerge_proto.options import SolveOptions
from moerge_proto.statistics_file import MAX_TOKENS, Int64, StatisticsFile, gram_length


def domain_weights(files: Sequence[StatisticsFile], domains: Sequence[str], options: SolveOptions) -> dict[str, float]:
    """The weight of each domain's statistics."""
    if options.domain_weights != "balanced":
        return {domain: options.domain_weights.get(domain, 1.0) for domain in domains}
    tokens = dict.fromkeys(domains, 0)
    for file in files:
        tokens[file.manifest.domain] += file.manifest.tokens
    mean = sum(tokens.values()) / len(tokens)
    return {domain: mean / tokens[domain] for domain in domains}


def ridge_system(
    files: Sequence[StatisticsFile],
    domains: Sequence[str],
    layer: int,
    gain: Tensor,
    weights: Mapping[str, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """The gram and cross of one layer over all contributions, with the gains multiplied back in.

    Integers of equal weight are added, so the order of `files` and how shards are grouped into them change no bit.

    Args:
        files: contributions under one trunk and of one split, at least one for every domain.
        domains: the columns, in order.
        gain: [H], what the features were divided by.
        weights: of each domain's statistics; 1 by default.

    Returns:
        gram [H, H] and cross [H, D], float64.

    Raises:
        ContributionError: the contributions together hold too many tokens.
    """
    tokens = sum(file.manifest.tokens for file in files)
    if tokens > MAX_TOKENS:
        raise ContributionError(f"{tokens} tokens in all, but the integers have room for {MAX_TOKENS}")
    exponent, hidden = files[0].manifest.exponents[layer], files[0].manifest.hidden_size
    weight = {domain: 1.0 if weights is None else weights[domain] for domain in domains}
    packed = np.zeros(gram_length(hidden))
    for each in sorted(set(weight.values())):
        alike = [file for file in files if weight[file.manifest.domain] == each]
        packed += each * to_floats(_total(file.gram(layer) for file in alike), exponent)
    columns = []
    for domain in domains:
        cross = _total(file.cross(layer) for file in files if file.manifest.domain == domain)
        columns.append(torch.from_numpy(weight[domain] * to_floats(cross, exponent)))
    wide = gain.to(torch.float64)
    square = torch.from_numpy(unpack(packed, hidden))
    square.mul_(wide).mul_(wide[:, None])
    return square, wide[:, None] * torch.stack(columns, dim=1)


def _total(arrays: Iterable[Int64]) -> Int64:
    """Exact, so in any order."""
    return reduce(add, arrays)
