"""The results of joining experts: each version's scores, and the gain of each remerge."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

from moerge.trunk.remerge_estimate import WORTH, estimate
from moerge_lab.table.figure import Figure, mean
from moerge_lab.table.table import Run

Names = tuple[str, ...]
_ABSENT = "-"


@dataclass(frozen=True)
class Version:
    """A version's normalised scores.

    Attributes:
        trunk: the domains of its trunk's experts.
        domains: its own, in slot order.
        scores, oracles: by domain.
    """

    trunk: Names
    domains: Names
    scores: Mapping[str, Figure]
    oracles: Mapping[str, Figure]

    @property
    def average(self) -> Figure:
        return mean(self.scores.values())

    @property
    def oracle(self) -> Figure:
        return mean(self.oracles.values())


@dataclass(frozen=True)
class Remerge:
    """A version with newcomers, and the version of the same domains under a trunk of all their experts."""

    kept: Version
    merged: Version

    @property
    def newcomers(self) -> Names:
        return tuple(name for name in self.kept.domains if name not in self.kept.trunk)

    @property
    def gained(self) -> Figure:
        """Points of the average."""
        return self.merged.average - self.kept.average

    @property
    def oracle_gained(self) -> Figure:
        """Points of the oracle's average, without routing errors."""
        return self.merged.oracle - self.kept.oracle

    @property
    def expected(self) -> Figure:
        """The coordinator's estimate of the gain, from the oracles of the kept trunk."""
        members = mean(self.kept.oracles[name] for name in self.kept.trunk)
        late = mean(self.kept.oracles[name] for name in self.newcomers)
        estimates = [
            estimate(
                members=before,
                newcomers=joining,
                merged=len(self.kept.trunk),
                joining=len(self.newcomers),
                domains=len(self.kept.domains),
            )
            for before, joining in zip(members.values, late.values, strict=True)
        ]
        return Figure([each.gain for each in estimates])


@dataclass(frozen=True)
class Joined:
    """A recipe's versions; the smallest comes first, and its trunk is kept.

    Attributes:
        domains: in joining order.
    """

    run: Run
    domains: Names
    versions: Sequence[Version]

    @property
    def kept(self) -> list[Version]:
        """Versions 1, 2, …, as experts join."""
        first = self.versions[0].trunk
        grown = [self.domains[:size] for size in range(len(first), len(self.domains) + 1)]
        return [each for each in self.versions if each.trunk == first and each.domains in grown]

    @property
    def remerges(self) -> list[Remerge]:
        """The remerge of every version with newcomers, for any trunk."""
        whole = {each.domains: each for each in self.versions if each.trunk == each.domains}
        return [Remerge(each, whole[each.domains]) for each in self.versions if each.trunk != each.domains]

    @property
    def joining(self) -> list[Remerge]:
        """The remerges of versions 2, 3, …, as experts join."""
        kept = self.kept
        return [each for each in self.remerges if each.kept in kept]

    def render(self, console: Console) -> Iterator[RichTable | str]:
        """The table, split in two on a narrow terminal, and its conclusions."""
        title = f"{self.run.label} as experts join: normalised perplexity, 100 = the domain's own dense expert"
        whole = self._lines(title, self._scores, self._averages)
        if console.measure(whole, options=console.options.update(width=1000)).maximum <= console.width:
            yield whole
        else:
            yield self._lines(title, self._scores)
            yield self._lines("Averages over the version's domains", self._averages)
        yield from self.conclusions()

    def _lines(self, title: str, *parts: Callable[[Version | Remerge], dict[str, str]]) -> RichTable:
        table = RichTable(title=title)
        first, *later = self.kept
        lines: list[tuple[str, str, Version | Remerge]] = [(f"1 {', '.join(first.domains)}", "merged", first)]
        for number, (each, remerge) in enumerate(zip(later, self.joining, strict=True), start=2):
            lines += [(f"{number} + {each.domains[-1]}", "kept", each), ("", "remerged", remerge.merged)]
            lines.append(("", "gain", remerge))
        for name in ("version", "trunk"):
            table.add_column(name)
        for name in (name for part in parts for name in part(first)):
            table.add_column(name, justify="right")
        for version, trunk, what in lines:
            cells = [cell for part in parts for cell in part(what).values()]
            table.add_row(version, trunk, *cells, end_section=trunk in ("merged", "gain"))
        return table

    def _scores(self, what: Version | Remerge) -> dict[str, str]:
        if isinstance(what, Version):
            return {name: _cell(what.scores.get(name)) for name in self.domains}
        before, after = what.kept.scores, what.merged.scores
        return {name: _signed(after[name] - before[name]) if name in after else _ABSENT for name in self.domains}

    def _averages(self, what: Version | Remerge) -> dict[str, str]:
        if isinstance(what, Version):
            spread = f" ± {what.average.deviation:.1f}" if len(what.average.values) > 1 else ""
            return {"average": _cell(what.average) + spread, "oracle": _cell(what.oracle), "expected": ""}
        figures = {"average": what.gained, "oracle": what.oracle_gained, "expected": what.expected}
        return {name: _signed(figure) for name, figure in figures.items()}

    def conclusions(self) -> list[str]:
        """The remerges that pay, and the accuracy of the estimate."""
        gains = [(number, each.gained.mean) for number, each in enumerate(self.joining, start=2)]
        said = " and ".join(f"{gain:+.1f} at version {number}" for number, gain in gains)
        paying = " and ".join(str(number) for number, gain in gains if gain >= WORTH)
        every = self.remerges
        expected = [each.expected.mean for each in every]
        return [
            f"{self.run.label}: a remerge gains {said}; it pays from {WORTH:g} point on: at {paying or 'none'}.",
            _judged("The oracle's average", expected, [each.oracle_gained.mean for each in every]),
            _judged("The average", expected, [each.gained.mean for each in every]),
        ]

    def to_json(self) -> dict[str, object]:
        """Each version's scores, and each remerge's gain."""
        named = {"recipe": self.run.recipe.name, "options": dict(self.run.options), "row": self.run.label}
        return {
            **named,
            "versions": [_version_record(each) for each in self.versions],
            "remerges": [
                {
                    "trunk": each.kept.trunk,
                    "domains": each.kept.domains,
                    "newcomers": each.newcomers,
                    "gained": _record(each.gained),
                    "oracle_gained": _record(each.oracle_gained),
                    "expected": _record(each.expected),
                }
                for each in self.remerges
            ],
        }


@dataclass(frozen=True)
class Growth:
    """The results, recipe by recipe; `domains` in joining order."""

    domains: Names
    recipes: Sequence[Joined]

    def render(self, console: Console) -> Iterator[RichTable | str]:
        for each in self.recipes:
            yield from each.render(console)

    def to_json(self) -> dict[str, object]:
        return {"domains": self.domains, "recipes": [each.to_json() for each in self.recipes]}


def _cell(figure: Figure | None) -> str:
    return _ABSENT if figure is None else f"{figure.mean:.1f}"


def _signed(figure: Figure) -> str:
    return f"{figure.mean:+.1f}"


def _judged(what: str, expected: Sequence[float], gained: Sequence[float]) -> str:
    """The gains of remerges, and the errors of the estimate."""
    both = list(zip(expected, gained, strict=True))
    errors = [estimated - real for estimated, real in both]
    hoped = [real for estimated, real in both if estimated >= WORTH]
    missed = [real for estimated, real in both if estimated < WORTH <= real]
    return (
        f"{what} gained {statistics.fmean(gained):+.1f} points in {len(both)} remerges, {min(gained):+.1f} to"
        f" {max(gained):+.1f}. The estimate's error was {statistics.fmean(errors):+.1f} on average,"
        f" {statistics.fmean(map(abs, errors)):.1f} without the sign, {max(map(abs, errors)):.1f} at most."
        f" Of {len(hoped)} remerges expected to gain {WORTH:g} or more, {sum(real >= WORTH for real in hoped)} did;"
        f" of the others, {len(missed)}" + (f", {max(missed):+.1f} at most." if missed else ".")
    )


def _record(figure: Figure) -> dict[str, object]:
    return {"score": figure.mean, "deviation": figure.deviation, "scores": list(figure.values)}


def _version_record(version: Version) -> dict[str, object]:
    return {
        "trunk": version.trunk,
        "domains": version.domains,
        "scores": {name: _record(figure) for name, figure in version.scores.items()},
        "oracles": {name: _record(figure) for name, figure in version.oracles.items()},
        "average": _record(version.average),
        "oracle": _record(version.oracle),
    }
