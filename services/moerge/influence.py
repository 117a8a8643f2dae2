"""The influence of each owner on the routers, from sums alone.

Mean and gram of a domain's features give mean and variance of its tokens' scores, which are linear in the feature. For
Gaussian scores, these give the share of tokens that score another expert above their own.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median_low

import torch
from torch import Tensor

from moerge.errors import ContributionError
from moerge.models.bounds import feature_gains
from moerge.routers.solve import by_split, of_layer, solve_layer
from moerge.routers.system import domain_weights, of_domain, ridge_system, tokens_of
from moerge.statistics.integers import effective_rank
from moerge.threads import at_once, one_thread
from moerge.versions.version_plan import VersionInputs, opened
from moerge_proto.digests import digest_of
from moerge_proto.influence import DomainInfluence, VersionInfluence
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import Sums
from moerge_proto.versions import Lineage

MOST_LAYERS, MOST_SOLVES = 8, 32
"""Bounds of a measurement, which solves each of its layers once without each owner."""
DRAWN, DRAWN_IN_A_LAYER, MOVED, NARROW = 0.1, 0.5, 0.3, 0.25
"""Bounds of the figures, with warnings beyond; moerge_lab/figures/privacy.md has honest owners'."""
STEEP = 100.0
"""Bound of the scores' root mean square; text gives some tens, a few tokens give thousands."""
_TINY, _MOST = 1e-300, 1e6  # keep figures finite

Solve = Callable[[Tensor, Sequence[int]], Tensor]
"""(gram [H, H] of some domains, their slots) -> their router, one row each."""


@dataclass(frozen=True)
class LayerInfluence:
    """The figures of one layer for D domains, float64. A row's domain influences a column's.

    Attributes:
        ranks: effective rank of each gram, [D].
        gram_distances: 1 minus the cosine between each gram and the sum of the others, [D].
        mean_distances: between means, in units of the column's spread, [D, D].
        drawn: expected share of the column's tokens that score the row's expert above their own, [D, D].
        moved: change of the column's scores without the row's owner, in units of their spread, [D, D].
        scores: root mean square of each expert's scores over all tokens, [D].
    """

    ranks: Tensor
    gram_distances: Tensor
    mean_distances: Tensor
    drawn: Tensor
    moved: Tensor
    scores: Tensor


def measured_layers(layers: int, owners: int, start: int = 0) -> list[int]:
    """As many evenly spaced layers as the bounds allow; `start`, any number, determines the first."""
    count = max(1, min(layers, MOST_LAYERS, MOST_SOLVES // (owners + 1)))
    return sorted({(start + layers * index // count) % layers for index in range(count)})


def measure(
    files: Sequence[Sums],
    domains: Sequence[str],
    gains: Tensor,
    options: SolveOptions,
    start: int = 0,
    measured: Callable[[int], None] = lambda layer: None,
) -> VersionInfluence:
    """The influence of each owner on the routers that `solve_layers` gives for the same arguments.

    `start` chooses the layers; owners shouldn't be able to predict it. `measured` is called after each layer.

    Raises:
        ContributionError, SolveError: a layer can't be solved, with all owners or without one, or only a sum over
            several domains is known.
    """
    training, tuning = by_split(files, options)
    if any(len(file.domains) > 1 for file in training):
        what = "contributions are one sum, so the domains' own are not known"
        raise ContributionError(what, todo="compare the scores of evaluations")
    weights = domain_weights(training, domains, options)
    counts = [[file.domains[domain] for file in of_domain(training, domain)] for domain in domains]
    owners = [items[0].owner for items in counts]
    tokens = [weights[domain] * tokens_of(training, domain) for domain in domains]
    layers = measured_layers(len(gains), len(set(owners)), start)

    def of(layer: int) -> LayerInfluence:
        chosen = options

        def system(files: Sequence[Sums], names: Sequence[str]) -> tuple[Tensor, Tensor]:
            return ridge_system(files, names, layer, gains[layer], weights)

        def gram_of(slot: int) -> Tensor:
            return system(of_domain(training, domains[slot]), [domains[slot]])[0]

        def solve(gram: Tensor, slots: Sequence[int]) -> Tensor:
            nonlocal chosen
            unit, held = float(gram.diagonal().mean()), None
            if chosen.lambda_scale == "auto":
                held = system(tuning, domains)
            router, report = solve_layer(gram, cross[:, list(slots)], held, [tokens[slot] for slot in slots], chosen)
            share = {"lambda_scale": "relative", "ridge_lambda": report.ridge_lambda / unit}
            chosen = options.model_copy(update=share)
            return router

        with of_layer(layer):
            gram, cross = system(training, domains)
            return layer_influence(gram_of, gram, cross, tokens, owners, solve)

    result, count = [], at_once()
    with one_thread(), ThreadPoolExecutor(count) as threads:
        for figures in threads.map(of, layers):
            result.append(figures)
            measured(layers[len(result) - 1])
    rows = [
        DomainInfluence(
            domain=domain,
            owner=owners[slot],
            tokens=sum(item.tokens for item in counts[slot]),
            documents=sum(item.documents for item in counts[slot]),
            effective_rank=_mean(item.ranks[slot] for item in result).item(),
            gram_distance=_mean(item.gram_distances[slot] for item in result).item(),
            mean_distances=_mean(item.mean_distances[slot] for item in result).tolist(),
            drawn=_mean(item.drawn[slot] for item in result).tolist(),
            drawn_most=torch.stack([item.drawn[slot] for item in result]).amax(dim=0).tolist(),
            moved=_mean(item.moved[slot] for item in result).tolist(),
        )
        for slot, domain in enumerate(domains)
    ]
    scores = options.temperature * torch.stack([item.scores for item in result]).amax(dim=0)
    return VersionInfluence(layers=layers, domains=rows, warnings=[*warnings(rows), *steep(domains, owners, scores)])


def measure_lineage(
    lineage: Lineage, inputs: VersionInputs, measured: Callable[[int], None] = lambda layer: None
) -> VersionInfluence:
    """The influence of each owner on a lineage's routers; its digest chooses the layers.

    Raises:
        ContributionError, SolveError: a layer can't be solved, with all owners or without one.
    """
    gains = feature_gains(inputs.body)
    start = int(digest_of(lineage.model_dump(mode="json"))[:8], 16)
    with ExitStack() as stack:
        return measure(opened(stack, inputs), lineage.domains, gains, lineage.options, start, measured)


def layer_influence(
    gram_of: Callable[[int], Tensor],
    gram: Tensor,
    cross: Tensor,
    tokens: Sequence[float],
    owners: Sequence[str],
    solve: Solve,
) -> LayerInfluence:
    """The figures of one layer.

    Args:
        gram_of: slot -> gram [H, H] float64 of a domain; called twice for each, so that few are in memory.
        gram: [H, H] float64, the sum of these.
        cross: [H, D] float64, the sums of the domains' features.
        tokens: of each domain, weighted like gram and cross.
        solve: called first for all owners, then without each owner; it may change its gram.
    """
    count = len(owners)
    counts = torch.tensor(tokens, dtype=torch.float64)
    means = (cross / counts).T  # [D, H]
    routers = solve(gram.clone(), range(count))  # [D, H]
    ranks, gram_distances = torch.zeros(2, count, dtype=torch.float64)
    without: dict[str, tuple[list[int], Tensor]] = {}  # owner -> the others' slots, their routers
    for owner in dict.fromkeys(owners):
        rest = gram.clone()
        for slot in _slots(owners, owner):
            one = gram_of(slot)
            ranks[slot] = effective_rank(one)
            others = gram - one
            gram_distances[slot] = 1 - (others * one).sum() / (others.norm() * one.norm()).clamp_min(_TINY)
            rest -= one
        left = [slot for slot in range(count) if owners[slot] != owner]
        if len(left) > 1:
            without[owner] = left, solve(rest, left)
    mean_distances, drawn, moved = torch.zeros(3, count, count, dtype=torch.float64)
    for slot in range(count):
        second = gram_of(slot) / counts[slot]  # of E[x x^T]
        spread = (second.trace() - means[slot].square().sum()).clamp_min(_TINY).sqrt()
        mean_distances[:, slot] = (means - means[slot]).norm(dim=1) / spread
        drawn[:, slot] = _drawn(routers, slot, means[slot], second)
        for owner, (left, fewer) in without.items():
            if owner != owners[slot]:
                moved[_slots(owners, owner), slot] = _moved(routers[left], fewer, left.index(slot), second)
    scores = ((routers @ gram) * routers).sum(dim=1).div(counts.sum()).clamp_min(0).sqrt()
    figures = ranks, gram_distances, mean_distances, drawn, moved, scores
    return LayerInfluence(*(figure.nan_to_num(nan=_MOST).clamp(max=_MOST) for figure in figures))


def _slots(owners: Sequence[str], owner: str) -> list[int]:
    return [slot for slot, item in enumerate(owners) if item == owner]


def _drawn(routers: Tensor, slot: int, mean: Tensor, second: Tensor) -> Tensor:
    """The share of a domain's tokens that each row of `routers` [D, H] scores above the domain's own, [D]."""
    margins = routers - routers[slot]
    ahead = margins @ mean
    variance = ((margins @ second) * margins).sum(dim=1) - ahead**2
    shares: Tensor = torch.special.ndtr(ahead / variance.clamp_min(_TINY).sqrt())
    shares[slot] = 0
    return shares


def _moved(before: Tensor, after: Tensor, row: int, second: Tensor) -> float:
    """The median over other rows of the relative root mean square change of a row's score minus theirs."""
    old, new = (torch.cat([item[:row], item[row + 1 :]]) - item[row] for item in (before, after))
    changes, sizes = (((item @ second) * item).sum(dim=1) for item in (old - new, new))
    return float((changes.clamp_min(0) / sizes.clamp_min(_TINY)).sqrt().median())


def _mean(figures: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(figures)).mean(dim=0)


def warnings(rows: Sequence[DomainInfluence]) -> list[str]:
    """Warnings about figures beyond the bounds, with owners. Hostile owners and similar text look alike in sums."""
    result = []
    names = [f"{row.domain} (owner {row.owner})" for row in rows]
    for row, name in zip(rows, names, strict=True):
        others = [slot for slot, other in enumerate(rows) if other.owner != row.owner]
        if not others:
            continue
        typical = median_low(rows[slot].effective_rank for slot in others)
        if row.effective_rank < NARROW * typical:
            result.append(
                f"The features of {name} span {row.effective_rank:.1f} directions, those of others {typical:.1f}: "
                "its text is very uniform, or its sums are not of text"
            )
        result += [
            f"{name} is expected to draw {100 * row.drawn[slot]:.0f} % of the tokens of {names[slot]}: "
            "their texts are alike, or one's sums are not from its own text"
            for slot in others
            if row.drawn[slot] > DRAWN or row.drawn_most[slot] > DRAWN_IN_A_LAYER
        ]
        moved = median_low(row.moved[slot] for slot in others)
        if moved > MOVED:
            result.append(f"Without {name}, the scores of other domains change by {100 * moved:.0f} % of their spread")
    return result


def steep(domains: Sequence[str], owners: Sequence[str], scores: Tensor) -> list[str]:
    """Warnings about experts whose scores [D], the largest of all layers, are beyond the bound."""
    return [
        f"The scores of {domain} (owner {owner}) are {score:.0f} on average; with enough text they are some tens. They "
        "follow single tokens, and may overflow in float16. Ask the owners for contributions of more text"
        for domain, owner, score in zip(domains, owners, scores.tolist(), strict=True)
        if score > STEEP
    ]
