"""Versions as experts join a kept trunk, compared with versions under remerged trunks."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from moerge.errors import MoergeError
from moerge.progress import Progress, Tracker
from moerge.scoring.perplexity import Score, document_scores, normalised, total
from moerge_lab.peaks import quick_collections
from moerge_lab.recipes.base import Fleet, Model
from moerge_lab.recipes.models import Loaded, Oracle, Routed
from moerge_lab.recipes.published import assembled, trunk_in
from moerge_lab.table.figure import Figure
from moerge_lab.table.joining_results import Growth, Joined, Names, Version
from moerge_lab.table.measure import Settings, Texts, fleet_of
from moerge_lab.table.table import Run

Plan = Mapping[Names, Sequence[Names]]
"""The domains of a trunk -> those of each version under it, smaller ones first."""
_Scores = Mapping[str, Score]


def plan(domains: Names, first: int, *, subsets: bool = False) -> Plan:
    """The versions to measure, in the order of the domains; the first one's trunk is kept.

    Args:
        first: number of experts in the first version.
        subsets: measure every version of at least so many domains under every trunk of at least so many of these.

    Raises:
        MoergeError: no expert is left to join.
    """
    if not first < len(domains):
        raise MoergeError(f"{first} of {len(domains)} experts leave none to join", where="`expert`", todo="name more")
    sizes = range(first, len(domains) + 1)
    if subsets:
        sets = [combination for size in sizes for combination in combinations(domains, size)]
        return {trunk: [item for item in sets if set(trunk) <= set(item)] for trunk in sets}
    grown = [domains[:size] for size in sizes]
    return {grown[0]: grown, **{item: [item] for item in grown[1:]}}


@quick_collections()
def join(
    runs: Sequence[Run], domains: Mapping[str, Texts], planned: Plan, settings: Settings, progress: Progress
) -> Growth:
    """Builds and scores the planned versions by each recipe, with every seed.

    Under one trunk each owner contributes once, even if others join later.

    Args:
        runs: of recipes with parts.
        domains: in slot order, which is the joining order.
    """
    tokens = {name: sum(window.scored for window in domain.held_out) for name, domain in domains.items()}
    versions = [item for under in planned.values() for item in (*under, under[-1])]  # the largest by an oracle too
    total = sum(tokens[name] for version in versions for name in version)
    with progress.track("experts", sum(tokens.values()), "tokens") as tracker:
        own = {
            name: _score(Loaded.of(domain.expert, settings.device), name, domain, tracker)
            for name, domain in domains.items()
        }
    result = []
    for run in runs:
        scores: dict[tuple[Names, Names], list[tuple[_Scores, _Scores]]] = {}
        with progress.track(run.label, total * settings.seeds, "tokens") as tracker:
            for seed in range(settings.seeds):
                for key, scored in _measured(run, domains, planned, settings, seed, tracker):
                    scores.setdefault(key, []).append(scored)
        made = [
            Version(trunk, names, *(_normalised([item[kind] for item in seeds], names, own) for kind in (0, 1)))
            for (trunk, names), seeds in scores.items()
        ]
        result.append(Joined(run, tuple(domains), made))
    return Growth(tuple(domains), result)


def _score(model: Model, name: str, texts: Texts, tracker: Tracker) -> Score:
    """A model's score of a domain's text."""
    return total(document_scores(model.losses, texts.held_out, tracker, domain=name))


def _normalised(seeds: Sequence[_Scores], names: Names, own: Mapping[str, Score]) -> dict[str, Figure]:
    return {name: Figure([normalised(own[name], scores[name]) for scores in seeds]) for name in names}


def _measured(
    run: Run, domains: Mapping[str, Texts], planned: Plan, settings: Settings, seed: int, tracker: Tracker
) -> Iterator[tuple[tuple[Names, Names], tuple[_Scores, _Scores]]]:
    """((trunk, domains), (scores, oracle's scores)) of each planned version with one seed."""
    with tempfile.TemporaryDirectory(prefix="moerge-table-") as work:
        fleet = fleet_of(domains, settings, seed, Path(work))
        for trunk, versions in planned.items():
            with tempfile.TemporaryDirectory(dir=work) as folder:
                there = replace(fleet, work=Path(folder))
                for names, scored in _under(run, domains, there, trunk, versions, tracker):
                    yield (trunk, names), scored


def _under(
    run: Run, domains: Mapping[str, Texts], fleet: Fleet, trunk: Names, versions: Sequence[Names], tracker: Tracker
) -> Iterator[tuple[Names, tuple[_Scores, _Scores]]]:
    """The versions under one trunk; their parts stay in the fleet's folder, so each owner contributes once.

    An oracle's scores don't depend on routers, so they are measured once.
    """
    parts, oracles = run.recipe.parts, dict[str, Score]()
    if parts is None:
        raise TypeError(f"{run.recipe.name} has no parts")
    within = replace(fleet, domains=[domain for domain in fleet.domains if domain.name in trunk])
    options = {**run.options, **parts.chosen(within, run.options)}
    merged = trunk_in(parts, within, options)
    for names in versions:
        slots = [slot for slot, domain in enumerate(fleet.domains) if domain.name in names]
        made = assembled(parts, fleet, options, trunk=merged, slots=slots)
        with tempfile.TemporaryDirectory(dir=fleet.work) as folder:
            routed = Routed.of(made.write(Path(folder)), fleet.device, fleet.dtype)
            oracle = Oracle(routed.model, names)
            scores = {name: _score(routed, name, domains[name], tracker) for name in names}
            new = [name for name in names if name not in oracles]
            oracles |= {name: _score(oracle, name, domains[name], tracker) for name in new}
        yield names, (scores, dict(oracles))
