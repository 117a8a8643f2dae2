"""One layer's ridge system from contributions, with one of them in memory at a time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from moerge.errors import ContributionError, SolveError
from moerge.statistics.integers import Float64, add, to_floats, unpack
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import MAX_TOKENS, Int64, Sums, gram_length

F = TypeVar("F", bound=Sums)
_SHOWN, _MOST_NAMES = 12, 3


def domain_weights(files: Sequence[Sums], domains: Sequence[str], options: SolveOptions) -> dict[str, float]:
    """The factor of each domain's sums; `balanced` gives each domain the mean number of tokens."""
    if options.domain_weights != "balanced":
        return {domain: options.domain_weights.get(domain, 1.0) for domain in domains}
    tokens = {domain: tokens_of(files, domain) for domain in domains}
    mean = sum(tokens.values()) / len(tokens)
    return {domain: mean / tokens[domain] for domain in domains}


def tokens_of(files: Sequence[Sums], domain: str) -> int:
    return sum(file.domains[domain].tokens for file in of_domain(files, domain))


def ridge_system(
    files: Sequence[Sums],
    domains: Sequence[str],
    layer: int,
    gain: Tensor,
    weights: Mapping[str, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Gram [H, H] and cross [H, D], float64, of one layer over all contributions, with the gains multiplied back in.

    Integers of equal weight are added, so the order of `files` and the grouping of shards change no bit.

    Args:
        files: contributions under one body and of one split, or sums of such; at least one for every domain.
        domains: the columns, in order.
        gain: [H], the divisors of the features.
        weights: of each domain's statistics; default: 1.

    Raises:
        ContributionError: the contributions have too many tokens in all.
        SolveError: domains of one sum have different weights.
    """
    tokens = sum(file.manifest.tokens for file in files)
    if tokens > MAX_TOKENS:
        largest = max(files, key=lambda file: file.manifest.tokens)
        raise ContributionError(
            f"expected at most {MAX_TOKENS} tokens in all, found {tokens}; "
            f"{largest.manifest.tokens} are from {named([largest], largest.domains)}",
            todo="withdraw it, or leave its expert out",
        )
    hidden = files[0].manifest.hidden_size
    weight = {domain: 1.0 if weights is None else weights[domain] for domain in domains}
    packed = np.zeros(gram_length(hidden))
    for value in sorted(set(weight.values())):
        alike = [file for file in files if _weight(file, weight) == value]
        packed += value * _total(alike, layer, lambda file: file.gram(layer))
    columns = []
    for domain in domains:
        cross = _total(of_domain(files, domain), layer, partial(Sums.cross, layer=layer, domain=domain))
        columns.append(torch.from_numpy(weight[domain] * cross))
    wide = gain.to(torch.float64)
    square = torch.from_numpy(unpack(packed, hidden))
    square.mul_(wide).mul_(wide[:, None])
    return square, wide[:, None] * torch.stack(columns, dim=1)


def of_domain(files: Sequence[F], domain: str) -> list[F]:
    """The contributions of a domain, and the sums with such."""
    return [file for file in files if domain in file.domains]


def _weight(file: Sums, weights: Mapping[str, float]) -> float:
    """The weight of a file's sums; the parts of its domains can't be weighted one by one."""
    found = {weights[domain] for domain in file.domains}
    if len(found) > 1:
        what = f"contributions of {', '.join(file.domains)} are one sum, so these domains can't have different weights"
        raise SolveError(what, where="domain_weights", todo="give `domain_weights` none")
    return found.pop()


def named(files: Sequence[Sums], domains: Iterable[str]) -> str:
    """Domains, their owners and contributions, for errors."""
    owners = dict.fromkeys(files[0].domains[domain].owner for domain in domains)
    digests = ", ".join(Path(file.name).stem[:_SHOWN] for file in files[:_MOST_NAMES])
    more = f" and {len(files) - _MOST_NAMES} more" if len(files) > _MOST_NAMES else ""
    return f"{', '.join(domains)} (owner {', '.join(owners)}, contribution {digests}{more})"


def _total(files: Sequence[Sums], layer: int, read: Callable[[Sums], Int64]) -> Float64:
    """The sum over files."""
    return to_floats(_exact(files, read), files[0].manifest.exponents[layer])


def _exact(files: Sequence[Sums], read: Callable[[Sums], Int64]) -> Int64:
    try:
        return reduce(add, map(read, files))
    except ContributionError as error:
        largest = max(files, key=lambda file: int(np.abs(read(file)).max()))
        todo = "withdraw it, or leave its expert out"
        raise ContributionError(
            f"{error.what}; the largest is from {named([largest], largest.domains)}", todo=todo
        ) from error
