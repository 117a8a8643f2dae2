"""From contributions to one layer's ridge system, one contribution in memory at a time."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from moerge.errors import ContributionError
from moerge.statistics.fixed_point import add, to_floats, unpack
from moerge_proto.statistics_file import MAX_TOKENS, Int64, StatisticsFile, gram_length
from moerge_proto.versions import SolveOptions


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

    A domain's integers are added, so the order of `files` and how shards are grouped into them change no bit.

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
    packed, columns = np.zeros(gram_length(hidden)), []
    for domain in domains:
        gram, cross = _domain_sums([file for file in files if file.manifest.domain == domain], layer)
        weight = 1.0 if weights is None else weights[domain]
        packed += weight * to_floats(gram, exponent)
        columns.append(torch.from_numpy(weight * to_floats(cross, exponent)))
    wide = gain.to(torch.float64)
    square = torch.from_numpy(unpack(packed, hidden))
    return wide[:, None] * square * wide, wide[:, None] * torch.stack(columns, dim=1)


def _domain_sums(files: Sequence[StatisticsFile], layer: int) -> tuple[Int64, Int64]:
    gram, cross = files[0].layer(layer)
    for file in files[1:]:
        more_gram, more_cross = file.layer(layer)
        gram, cross = add(gram, more_gram), add(cross, more_cross)
    return gram, cross
