"""From contributions to one layer's ridge system, one contribution in memory at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from moerge.errors import ContributionError
from moerge.statistics.fixed_point import add, to_floats, unpack
from moerge_proto.statistics_file import MAX_TOKENS, Int64, StatisticsFile


def ridge_system(
    files: Sequence[StatisticsFile], domains: Sequence[str], layer: int, gain: Tensor
) -> tuple[Tensor, Tensor]:
    """The gram and cross of one layer over all contributions, with the gains multiplied back in.

    Integers are added, so the order of `files` and how shards are grouped into them change no bit.

    Args:
        files: contributions under one trunk, at least one for every domain.
        domains: the columns, in order.
        gain: [H], of the norm before the MLP.

    Returns:
        gram [H, H] and cross [H, D], float64.

    Raises:
        ContributionError: the contributions together hold too many tokens.
    """
    tokens = sum(file.manifest.tokens for file in files)
    if tokens > MAX_TOKENS:
        raise ContributionError(f"{tokens} tokens in all, but the integers have room for {MAX_TOKENS}")
    exponent, hidden = files[0].manifest.exponents[layer], files[0].manifest.hidden_size
    gram = files[0].layer(layer)[0] * 0
    crosses: dict[str, Int64] = {}
    for file in files:
        part, cross = file.layer(layer)
        gram = add(gram, part)
        known = crosses.get(file.manifest.domain)
        crosses[file.manifest.domain] = cross if known is None else add(known, cross)
    weight = gain.to(torch.float64)
    square = torch.from_numpy(unpack(to_floats(gram, exponent), hidden))
    columns = torch.stack([torch.from_numpy(to_floats(crosses[domain], exponent)) for domain in domains], dim=1)
    return weight[:, None] * square * weight, weight[:, None] * columns
