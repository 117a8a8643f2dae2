"""The papers' table (DUME section 3.1 and table 2): normalised perplexity of every recipe's models on every domain."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table as RichTable
from torch import Tensor

from moerge.recipes.base import Options, Recipe
from moerge.recipes.dense import expert_row
from moerge.recipes.version_folder import VERSION
from moerge.scoring.perplexity import Score, normalised, total

SCORES = "Normalised perplexity: 100 = the domain's own dense expert, higher is better"
AHEAD = "†"
"""Marks recipes that choose experts by what they are scored on too."""


@dataclass(frozen=True)
class Run:
    """A recipe that is measured, all of its options, and what the table calls it."""

    recipe: Recipe
    options: Options
    label: str


@dataclass(frozen=True)
class Result:
    """One model of a recipe, with one seed.

    Attributes:
        documents: domain -> score of each document.
        active_parameters: that a token is multiplied by.
        seconds: to build and to score it.
        peak_memory: bytes over what there was before; None where the system doesn't tell.
        counts: domain -> [D], how many scored tokens went to each expert first, over layers; empty for models whose
            routers can't be watched.
    """

    documents: Mapping[str, Sequence[Score]]
    active_parameters: float
    seconds: float
    peak_memory: int | None = None
    counts: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, Score]:
        """Domain -> score."""
        return {domain: total(scores) for domain, scores in self.documents.items()}


@dataclass(frozen=True)
class Row:
    """A line of the table: a model of a recipe, seed by seed."""

    run: Run
    name: str
    results: Sequence[Result]

    @property
    def active_parameters(self) -> float:
        return statistics.fmean(result.active_parameters for result in self.results)

    @property
    def seconds(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(result.seconds for result in self.results)

    @property
    def peak_memory(self) -> int | None:
        """The most of all seeds, in bytes."""
        known = [result.peak_memory for result in self.results if result.peak_memory is not None]
        return max(known, default=None)

    def shares(self) -> dict[str, list[float]]:
        """Domain -> share of its scored tokens that each expert got, over layers and seeds; empty if not counted."""
        summed = {domain: sum(result.counts[domain] for result in self.results) for domain in self.results[0].counts}
        return {domain: (counts / counts.sum()).tolist() for domain, counts in summed.items()}  # type: ignore[union-attr]


@dataclass(frozen=True)
class Figure:
    """A figure over seeds."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """The sample's standard deviation; 0 for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class Table:
    """What was measured; among the rows are each domain's dense expert, by which all are normalised."""

    domains: Sequence[str]
    rows: Sequence[Row]

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def normalised(self, row: Row, domain: str) -> Figure:
        """100 x the dense expert's perplexity on its own domain / this row's, per seed."""
        own = self._own(domain)
        return Figure([normalised(own, result.scores[domain]) for result in row.results])

    def average(self, row: Row) -> Figure:
        """The normalised average perplexity score, per seed."""
        columns = [self.normalised(row, domain).values for domain in self.domains]
        return Figure([statistics.fmean(each) for each in zip(*columns, strict=True)])

    def _own(self, domain: str) -> Score:
        return self.row(expert_row(domain)).results[0].scores[domain]

    def to_json(self) -> dict[str, object]:
        """A record per row and domain, the rows' averages, and where routers sent what."""
        return {
            "domains": list(self.domains),
            "tokens": {domain: self._own(domain).tokens for domain in self.domains},
            "records": [self._record(row, domain) for row in self.rows for domain in self.domains],
            "averages": [_figures(row, self.average(row)) for row in self.rows],
            "shares": {row.name: shares for row in self.rows if (shares := row.shares())},
        }

    def _record(self, row: Row, domain: str) -> dict[str, object]:
        perplexity = statistics.fmean(result.scores[domain].perplexity for result in row.results)
        return {**_figures(row, self.normalised(row, domain)), "domain": domain, "perplexity": perplexity}

    def render(self, console: Console) -> Iterable[RichTable]:
        """The table, in two where the terminal is narrow; and, of a published version, which experts it chose."""
        whole = self._lines(SCORES, self._scores, self._costs)
        unbounded = console.options.update(width=1000)
        if console.measure(whole, options=unbounded).maximum <= console.width:
            yield whole
        else:
            yield self._lines(SCORES, self._scores)
            yield self._lines("What it takes to run, and to build and score", self._costs)
        yield from (self._routing(row) for row in self.rows if row.run.recipe.name == VERSION and row.shares())

    def _lines(self, title: str, *parts: Callable[[Row], dict[str, str]]) -> RichTable:
        """A line per row, of the columns that the parts make."""
        ahead = any(row.run.recipe.reads_ahead for row in self.rows)
        note = f"{AHEAD} chooses experts by the whole window, so by what it is then scored on too"
        table = RichTable(title=title, caption=note if ahead else None)
        lines = [{name: cell for part in parts for name, cell in part(row).items()} for row in self.rows]
        table.add_column("recipe")
        for name in lines[0]:
            table.add_column(name, justify="right")
        for number, (row, cells) in enumerate(zip(self.rows, lines, strict=True), start=1):
            table.add_row(shown(row), *cells.values(), end_section=number == len(self.domains))
        return table

    def _scores(self, row: Row) -> dict[str, str]:
        average = self.average(row)
        spread = f" ± {average.deviation:.1f}" if len(average.values) > 1 else ""
        cells = {domain: f"{self.normalised(row, domain).mean:.1f}" for domain in self.domains}
        return {**cells, "average": f"{average.mean:.1f}{spread}"}

    def _costs(self, row: Row) -> dict[str, str]:
        memory = "" if row.peak_memory is None else f"{row.peak_memory / 1e6:,.0f} MB"
        return {"active": parameters(row.active_parameters), "seconds": f"{row.seconds:.1f}", "memory": memory}

    def _routing(self, row: Row) -> RichTable:
        table = RichTable(title="Share of tokens that each expert got, over all layers")
        table.add_column("text of")
        for domain in self.domains:
            table.add_column(expert_row(domain), justify="right")
        for domain, shares in row.shares().items():
            table.add_row(domain, *[f"{100 * share:.0f} %" for share in shares])
        return table


def shown(row: Row) -> str:
    """A row's name, marked if it reads ahead."""
    return f"{row.name} {AHEAD}" if row.run.recipe.reads_ahead else row.name


def parameters(number: float) -> str:
    """So many parameters, such as 3.4 M."""
    return f"{number / 1e6:,.1f} M"


def _figures(row: Row, found: Figure) -> dict[str, object]:
    return {
        "recipe": row.run.recipe.name,
        "options": dict(row.run.options),
        "row": row.name,
        "score": found.mean,
        "deviation": found.deviation,
        "scores": list(found.values),
        "seeds": len(found.values),
        "active_parameters": row.active_parameters,
        "seconds": row.seconds,
        "peak_memory": row.peak_memory,
        "reads_ahead": row.run.recipe.reads_ahead,
    }
