"""Versions as experts join a kept body one at a time, compared with versions under remerged bodies.

Under a kept body the head is made again from all experts, and the newcomers of some recipes are fitted to it.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table as RichTable

from moerge.merging.assemble import KeptParts
from moerge.progress import Progress, Tracker
from moerge.scoring.perplexity import Score, document_scores, normalised, total
from moerge.terminal import Screen
from moerge_lab.peaks import quick_collections
from moerge_lab.recipes.base import Model
from moerge_lab.recipes.models import Loaded, Oracle, Routed
from moerge_lab.recipes.published import assembled, body_in
from moerge_lab.table.figure import Figure, mean
from moerge_lab.table.measure import Settings, Texts, fleet_of
from moerge_lab.table.table import Run

FIRST = 2
"""Number of experts in the first version."""
Names = tuple[str, ...]
_Scores = Mapping[str, Score]


@dataclass(frozen=True)
class Version:
    """A version's normalised scores by domain, in slot order, with its routers and with an oracle.

    Attributes:
        body: the domains of its body's experts.
    """

    body: Names
    scores: Mapping[str, Figure]
    oracles: Mapping[str, Figure]

    @property
    def domains(self) -> Names:
        return tuple(self.scores)

    @property
    def average(self) -> Figure:
        return mean(self.scores.values())

    @property
    def oracle(self) -> Figure:
        return mean(self.oracles.values())

    def to_json(self) -> dict[str, object]:
        scores, oracles = (
            {name: _record(figure) for name, figure in item.items()} for item in (self.scores, self.oracles)
        )
        averages = {"average": _record(self.average), "oracle": _record(self.oracle)}
        return {"body": self.body, "domains": self.domains, "scores": scores, "oracles": oracles, **averages}


@dataclass(frozen=True)
class Remerge:
    """A version with newcomers, and the version of the same domains under a body of all their experts."""

    kept: Version
    merged: Version

    @property
    def newcomers(self) -> Names:
        return self.kept.domains[len(self.kept.body) :]

    def gains(self) -> dict[str, Figure]:
        """Points of the average, and of the oracle's average, without routing errors."""
        gained, oracle_gained = self.merged.average - self.kept.average, self.merged.oracle - self.kept.oracle
        return {"gained": gained, "oracle_gained": oracle_gained}

    def to_json(self) -> dict[str, object]:
        names = {"body": self.kept.body, "domains": self.kept.domains, "newcomers": self.newcomers}
        return names | {name: _record(figure) for name, figure in self.gains().items()}


@dataclass(frozen=True)
class Joined:
    """A recipe's versions 1, 2, … under the first one's body; and 2, 3, … under remerged bodies."""

    run: Run
    kept: Sequence[Version]
    merged: Sequence[Version]

    @property
    def remerges(self) -> list[Remerge]:
        return [Remerge(*pair) for pair in zip(self.kept[1:], self.merged, strict=True)]

    def render(self) -> Iterator[RichTable | str]:
        title = f"{self.run.label} as experts join: normalised perplexity, 100 = the domain's own dense expert"
        table = RichTable("version", "body", title=title)
        for name in (*self.kept[-1].domains, "average", "oracle"):
            table.add_column(name, justify="right")
        first = self.kept[0]
        table.add_row(f"1 {', '.join(first.domains)}", "merged", *self._cells(first), end_section=True)
        gains = list[tuple[int, float]]()
        for number, remerge in enumerate(self.remerges, start=2):
            gained = {name: remerge.merged.scores[name] - score for name, score in remerge.kept.scores.items()}
            table.add_row(f"{number} + {remerge.kept.domains[-1]}", "kept", *self._cells(remerge.kept))
            table.add_row("", "remerged", *self._cells(remerge.merged))
            averages = [f"{figure.mean:+.1f}" for figure in remerge.gains().values()]
            table.add_row("", "gain", *self._by_domain(gained, "{:+.1f}".format), *averages, end_section=True)
            gains.append((number, remerge.gains()["gained"].mean))
        yield table
        gain = " and ".join(f"{gain:+.1f} at version {number}" for number, gain in gains)
        yield f"{self.run.label}: a remerge gains {gain}."

    def _cells(self, version: Version) -> list[str]:
        average, oracle = version.average, version.oracle
        spread = f" ± {average.deviation:.1f}" if len(average.values) > 1 else ""
        scores = self._by_domain(version.scores, "{:.1f}".format)
        return [*scores, f"{average.mean:.1f}{spread}", f"{oracle.mean:.1f}"]

    def _by_domain(self, figures: Mapping[str, Figure], shown: Callable[[float], str]) -> list[str]:
        return [shown(figures[name].mean) if name in figures else "-" for name in self.kept[-1].domains]

    def to_json(self) -> dict[str, object]:
        return {
            "recipe": self.run.recipe.name,
            "options": dict(self.run.options),
            "row": self.run.label,
            "versions": [version.to_json() for version in (*self.kept, *self.merged)],
            "remerges": [remerge.to_json() for remerge in self.remerges],
        }


@dataclass(frozen=True)
class Growth:
    domains: Names
    recipes: Sequence[Joined]

    def render(self, console: Screen) -> Iterator[RichTable | str]:
        for recipe in self.recipes:
            yield from recipe.render()

    def to_json(self) -> dict[str, object]:
        return {"domains": self.domains, "recipes": [recipe.to_json() for recipe in self.recipes]}


@quick_collections()
def join(runs: Sequence[Run], domains: Mapping[str, Texts], settings: Settings, progress: Progress) -> Growth:
    """Builds and scores the versions of each recipe with every seed, in the domains' order.

    Under one body each owner contributes once, even if others join later.

    Args:
        runs: of recipes with parts.
    """
    names = tuple(domains)
    grown = [names[:size] for size in range(FIRST, len(names) + 1)]
    tokens = {name: sum(window.scored for window in domain.held_out) for name, domain in domains.items()}
    versions = [*grown, *grown[1:]]  # kept, remerged
    units = 2 * settings.seeds * sum(tokens[name] for version in versions for name in version)  # also an oracle's
    with progress.track("experts", sum(tokens.values()), "tokens") as tracker:
        dense = {
            name: _score(Loaded.of(domain.expert, settings.device), name, domain, tracker)
            for name, domain in domains.items()
        }
    result = []
    for run in runs:
        with progress.track(run.label, units, "tokens") as tracker:
            kept = _versions(run, domains, grown, settings, dense, tracker)
            merged = [_versions(run, domains, [item], settings, dense, tracker)[0] for item in grown[1:]]
        result.append(Joined(run, kept, merged))
    return Growth(names, result)


def _score(model: Model, name: str, texts: Texts, tracker: Tracker) -> Score:
    return total(document_scores(model.losses, texts.held_out, tracker, domain=name))


def _versions(
    run: Run, domains: Mapping[str, Texts], grown: Sequence[Names], settings: Settings, dense: _Scores, tracker: Tracker
) -> list[Version]:
    """The versions under the body of the first one's experts."""

    def figures(names: Names, seeds: Sequence[_Scores]) -> dict[str, Figure]:
        return {name: Figure([normalised(dense[name], scores[name]) for scores in seeds]) for name in names}

    measured = [_measured(run, domains, grown, settings, seed, tracker) for seed in range(settings.seeds)]
    seeds = [tuple(zip(*item, strict=True)) for item in zip(*measured, strict=True)]
    return [
        Version(grown[0], figures(names, scores), figures(names, oracles))
        for names, (scores, oracles) in zip(grown, seeds, strict=True)
    ]


def _measured(
    run: Run, domains: Mapping[str, Texts], grown: Sequence[Names], settings: Settings, seed: int, tracker: Tracker
) -> list[tuple[_Scores, _Scores]]:
    """Each version's scores, and its oracle's, with one seed."""
    parts, result = run.recipe.parts, list[tuple[_Scores, _Scores]]()
    if parts is None:
        raise TypeError(f"{run.recipe.name} has no parts")
    with tempfile.TemporaryDirectory(prefix="moerge-table-") as work:
        fleet = fleet_of(domains, settings, seed, Path(work))
        within = replace(fleet, domains=fleet.domains[: len(grown[0])])
        options = {**run.options, **parts.chosen(within, run.options)}
        kept = KeptParts(body_in(parts, within, options))
        for names in grown:
            version = assembled(parts, replace(fleet, domains=fleet.domains[: len(names)]), options, kept=kept)
            kept = version.parts
            with tempfile.TemporaryDirectory(dir=work) as folder:
                routed = Routed.of(version.write(Path(folder)), fleet.device)
                oracle = Oracle(routed.model, names)
                scores, oracles = (
                    {name: _score(model, name, domains[name], tracker) for name in names} for model in (routed, oracle)
                )
                result.append((scores, oracles))
    return result


def _record(figure: Figure) -> dict[str, object]:
    return {"score": figure.mean, "deviation": figure.deviation, "scores": list(figure.values)}
