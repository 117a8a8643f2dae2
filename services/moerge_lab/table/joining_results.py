"""The results of joining experts: each version's scores, and the gain of each remerge."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

from moerge.trunk.remerge_estimate import WORTH, estimate
from moerge_lab.table.figure import Figure, mean
from moerge_lab.table.table import Run

Names = tuple[str, ...]


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

    def cells(self, domains: Names) -> list[str]:
        """A score per domain, the average, the oracle's average, and no estimate."""
        spread = f" ± {self.average.deviation:.1f}" if len(self.average.values) > 1 else ""
        scores = [f"{self.scores[name].mean:.1f}" if name in self.scores else "-" for name in domains]
        return [*scores, f"{self.average.mean:.1f}{spread}", f"{self.oracle.mean:.1f}", ""]

    def to_json(self) -> dict[str, object]:
        scores, oracles = (
            {name: _record(figure) for name, figure in item.items()} for item in (self.scores, self.oracles)
        )
        figures = {"average": _record(self.average), "oracle": _record(self.oracle)}
        return {"trunk": self.trunk, "domains": self.domains, "scores": scores, "oracles": oracles, **figures}


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
        merged, joining, domains = len(self.kept.trunk), len(self.newcomers), len(self.kept.domains)
        return Figure(
            [
                estimate(members=before, newcomers=after, merged=merged, joining=joining, domains=domains).gain
                for before, after in zip(members.values, late.values, strict=True)
            ]
        )

    def cells(self, domains: Names) -> list[str]:
        """The gain of each domain, of the average and of the oracle's average, and its estimate."""
        before, after = self.kept.scores, self.merged.scores
        gains = [f"{(after[name] - before[name]).mean:+.1f}" if name in after else "-" for name in domains]
        return [*gains, *(f"{figure.mean:+.1f}" for figure in (self.gained, self.oracle_gained, self.expected))]

    def to_json(self) -> dict[str, object]:
        figures = {"gained": self.gained, "oracle_gained": self.oracle_gained, "expected": self.expected}
        names = {"trunk": self.kept.trunk, "domains": self.kept.domains, "newcomers": self.newcomers}
        return names | {name: _record(figure) for name, figure in figures.items()}


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
        return [version for version in self.versions if version.trunk == first and version.domains in grown]

    @property
    def remerges(self) -> list[Remerge]:
        """The remerge of every version with newcomers, for any trunk."""
        whole = {version.domains: version for version in self.versions if version.trunk == version.domains}
        return [
            Remerge(version, whole[version.domains]) for version in self.versions if version.trunk != version.domains
        ]

    @property
    def joining(self) -> list[Remerge]:
        """The remerges of versions 2, 3, …, as experts join."""
        kept = self.kept
        return [remerge for remerge in self.remerges if remerge.kept in kept]

    def render(self, console: Console) -> Iterator[RichTable | str]:
        """The table, split in two on a narrow terminal, and its conclusions."""
        title = f"{self.run.label} as experts join: normalised perplexity, 100 = the domain's own dense expert"
        columns, count = [*self.domains, "average", "oracle", "expected"], len(self.domains)
        whole = self._table(title, columns, slice(None))
        if console.measure(whole, options=console.options.update(width=1000)).maximum <= console.width:
            yield whole
        else:
            yield self._table(title, columns, slice(count))
            yield self._table("Averages over the version's domains", columns, slice(count, None))
        yield from self.conclusions()

    def _table(self, title: str, columns: Sequence[str], shown: slice) -> RichTable:
        table = RichTable("version", "trunk", title=title)
        for name in columns[shown]:
            table.add_column(name, justify="right")
        first, *later = self.kept
        table.add_row(f"1 {', '.join(first.domains)}", "merged", *first.cells(self.domains)[shown], end_section=True)
        for number, (kept, remerge) in enumerate(zip(later, self.joining, strict=True), start=2):
            table.add_row(f"{number} + {kept.domains[-1]}", "kept", *kept.cells(self.domains)[shown])
            table.add_row("", "remerged", *remerge.merged.cells(self.domains)[shown])
            table.add_row("", "gain", *remerge.cells(self.domains)[shown], end_section=True)
        return table

    def conclusions(self) -> list[str]:
        """The remerges that pay, and the accuracy of the estimate."""
        gains = [(number, item.gained.mean) for number, item in enumerate(self.joining, start=2)]
        said = " and ".join(f"{gain:+.1f} at version {number}" for number, gain in gains)
        paying = " and ".join(str(number) for number, gain in gains if gain >= WORTH)
        every = self.remerges
        expected = [item.expected.mean for item in every]
        return [
            f"{self.run.label}: a remerge gains {said}; it pays from {WORTH:g} point on: at {paying or 'none'}.",
            _judged("The oracle's average", expected, [item.oracle_gained.mean for item in every]),
            _judged("The average", expected, [item.gained.mean for item in every]),
        ]

    def to_json(self) -> dict[str, object]:
        """Each version's scores, and each remerge's gain."""
        return {
            "recipe": self.run.recipe.name,
            "options": dict(self.run.options),
            "row": self.run.label,
            "versions": [version.to_json() for version in self.versions],
            "remerges": [remerge.to_json() for remerge in self.remerges],
        }


@dataclass(frozen=True)
class Growth:
    """The results, recipe by recipe; `domains` in joining order."""

    domains: Names
    recipes: Sequence[Joined]

    def render(self, console: Console) -> Iterator[RichTable | str]:
        for recipe in self.recipes:
            yield from recipe.render(console)

    def to_json(self) -> dict[str, object]:
        return {"domains": self.domains, "recipes": [recipe.to_json() for recipe in self.recipes]}


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
