"""The papers' table (DUME section 3.1 and table 2): normalised perplexity of recipes' models on every domain."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table as RichTable
from torch import Tensor

from moerge.scoring.perplexity import Score, total
from moerge.terminal import Screen
from moerge_lab.recipes.base import Numbers, Options, Recipe
from moerge_lab.recipes.dense import expert_row
from moerge_lab.recipes.published import VERSION
from moerge_lab.table.figure import Figure, mean
from moerge_lab.training.job import Trained

AHEAD = "†"
"""Marks recipes that choose experts also by scored tokens."""
RECOVERED = 95
"""A score behind a change of text that counts as recovered from it."""


@dataclass(frozen=True)
class Frame:
    """The meaning of a table's cells.

    Attributes:
        hundred: the model that has 100.
        reference: its row; None: each domain's own expert.
        elsewhere: name of the last column, where 100 is the seed model.
        elsewhere_text: its text.
    """

    hundred: str = "the domain's own dense expert"
    reference: str | None = None
    elsewhere: str = "elsewhere"
    elsewhere_text: str = "text of no domain"

    def own(self, domain: str) -> str:
        """The row that normalises a domain."""
        return self.reference or expert_row(domain)


SPECIALISTS = Frame("the seed model", "seed", "generic", "held-out text of the experts' domains")
"""Of models that are specialised on texts of their own."""


@dataclass(frozen=True)
class Run:
    """A measured recipe, all of its options, and its name in the table."""

    recipe: Recipe
    options: Options
    label: str


@dataclass(frozen=True)
class Result:
    """One model of a recipe, with one seed.

    Attributes:
        documents: domain -> score of each document.
        seconds: to build and to score it; without likelihoods that an earlier row computed, like the memory.
        peak_memory: additional bytes; None if unknown.
        counts: domain -> [D], scored tokens by first-choice expert, over layers; empty without routers.
        elsewhere: score of each document of no domain; empty without such text, and for an oracle.
        chosen: options that the recipe chose by the tuning text.
        bands: domain -> band -> score of each document, by tokens since a change of text; else without bands.
    """

    documents: Mapping[str, Sequence[Score]]
    active_parameters: float
    seconds: float
    peak_memory: int | None = None
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    elsewhere: Sequence[Score] = ()
    chosen: Numbers = field(default_factory=dict)
    trained: Trained | None = None
    bands: Mapping[str, Sequence[Sequence[Score]]] = field(default_factory=dict)


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
    def chosen(self) -> dict[str, list[float]]:
        return {name: [result.chosen[name] for result in self.results] for name in self.results[0].chosen}

    @property
    def trained(self) -> Trained | None:
        """Equal for all seeds."""
        return self.results[0].trained

    @property
    def seconds(self) -> float:
        return statistics.fmean(result.seconds for result in self.results)

    @property
    def peak_memory(self) -> int | None:
        known = [result.peak_memory for result in self.results if result.peak_memory is not None]
        return max(known, default=None)

    def shares(self) -> dict[str, list[float]]:
        """Domain -> each expert's share of its scored tokens, over layers and seeds; empty if not counted."""
        summed = {domain: sum(result.counts[domain] for result in self.results) for domain in self.results[0].counts}
        return {domain: (counts / counts.sum()).tolist() for domain, counts in summed.items()}  # type: ignore[union-attr]


@dataclass(frozen=True)
class Table:
    """The measured rows, including those that normalise: the domains' dense experts, or the frame's reference.

    Attributes:
        base: the seed model's score of each document of no domain; empty without such text.
        against: the row to compare the others' averages with, if any.
        seeds: the domains whose expert is the seed model, which averages leave out.
        edges: first token of each band behind a change of text; empty: texts don't change.
    """

    domains: Sequence[str]
    rows: Sequence[Row]
    base: Sequence[Score] = ()
    against: str | None = None
    frame: Frame = field(default_factory=Frame)
    seeds: Collection[str] = ()
    edges: Sequence[int] = ()

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def normalised(self, row: Row, domain: str) -> Figure:
        """100 x the perplexity of the domain's own expert, or of the frame's reference / this row's, per seed."""
        models = [result.documents[domain] for result in row.results]
        return Figure.of(self._own(domain), models, list(self.domains).index(domain))

    def average(self, row: Row) -> Figure:
        """The normalised average perplexity score, per seed."""
        return mean(self.normalised(row, domain) for domain in self._averaged)

    def bands(self, row: Row) -> list[Figure]:
        """The average of a row's tokens in each band behind a change of text."""
        return [mean(self._band(row, domain, band) for domain in self._averaged) for band in range(len(self.edges))]

    def recovers(self, row: Row) -> int | None:
        """The tokens behind a change of text after which all bands have 95 or more; None: never."""
        below = [band for band, figure in enumerate(self.bands(row)) if figure.mean < RECOVERED]
        later = max(below, default=-1) + 1
        return self.edges[later] if later < len(self.edges) else None

    @property
    def _averaged(self) -> list[str]:
        return [domain for domain in self.domains if domain not in self.seeds]

    def _band(self, row: Row, domain: str, band: int) -> Figure:
        dense = self.row(self.frame.own(domain)).results[0].bands[domain][band]
        models = [result.bands[domain][band] for result in row.results]
        return Figure.of(dense, models, list(self.domains).index(domain))

    def elsewhere(self, row: Row) -> Figure | None:
        """100 x the seed model's perplexity on text of no domain / this row's, per seed."""
        scores = [result.elsewhere for result in row.results if result.elsewhere]
        return Figure.of(self.base, scores, len(self.domains)) if self.base and scores else None

    def difference(self, row: Row, figure: Callable[[Row], Figure | None] | None = None) -> Figure | None:
        """This row's average (or another figure) less that of the row `against`, over the same documents and seeds."""
        if self.against is None or self.against == row.name:
            return None
        one, other = ((figure or self.average)(item) for item in (row, self.row(self.against)))
        return None if one is None or other is None else one - other

    def _own(self, domain: str) -> Sequence[Score]:
        return self.row(self.frame.own(domain)).results[0].documents[domain]

    def to_json(self) -> dict[str, object]:
        """A record per row and domain, the rows' averages, and where routers sent what."""
        return {
            "domains": list(self.domains),
            "tokens": {domain: total(self._own(domain)).tokens for domain in self.domains},
            "documents": {domain: len(self._own(domain)) for domain in self.domains},
            self.frame.elsewhere: {"tokens": total(self.base).tokens, "documents": len(self.base)},
            "against": self.against,
            "records": [self._record(row, domain) for row in self.rows for domain in self.domains],
            "averages": [self._average_record(row) for row in self.rows],
            "shares": {row.name: shares for row in self.rows if (shares := row.shares())},
        }

    def _record(self, row: Row, domain: str) -> dict[str, object]:
        perplexity = statistics.fmean(total(result.documents[domain]).perplexity for result in row.results)
        return {**_figures(row, self.normalised(row, domain)), "domain": domain, "perplexity": perplexity}

    def _average_record(self, row: Row) -> dict[str, object]:
        record, result = _figures(row, self.average(row)), self.difference(row)
        if result is not None:
            record |= {"difference": result.mean, "difference_error": result.error}
        if self.edges:
            found = [
                {"from": edge, "score": figure.mean, "error": figure.error}
                for edge, figure in zip(self.edges, self.bands(row), strict=True)
            ]
            record["behind_switch"] = {"bands": found, "recovers": self.recovers(row)}
        if abroad := self.elsewhere(row):
            there: dict[str, object] = {"score": abroad.mean, "error": abroad.error, "scores": list(abroad.values)}
            if gained := self.difference(row, self.elsewhere):
                there |= {"difference": gained.mean, "difference_error": gained.error}
            record[self.frame.elsewhere] = there
        return record

    def render(self, console: Screen) -> Iterable[RichTable]:
        """The table, on a narrow terminal split in two; and a published version's choice of experts."""
        title = f"Normalised perplexity: 100 = {self.frame.hundred}, higher is better"
        whole = self._lines(title, self._scores, self._costs)
        if console.measure(whole, options=console.options.update(width=1000)).maximum <= console.width:
            yield whole
        else:
            yield self._lines(title, self._scores)
            yield self._lines("Cost of running, and of building and scoring", self._costs, caption=False)
        if self.edges:
            yield self._by_band()
        yield from (self._routing(row) for row in self.rows if row.run.recipe.name == VERSION and row.shares())

    def _lines(self, title: str, *parts: Callable[[Row], dict[str, str]], caption: bool = True) -> RichTable:
        ahead = any(row.run.recipe.reads_ahead for row in self.rows)
        note = f". {AHEAD} chooses experts by the whole window, including scored tokens"
        table = RichTable("recipe", title=title, caption=self.scored() + (note if ahead else "") if caption else None)
        lines = [{name: cell for part in parts for name, cell in part(row).items()} for row in self.rows]
        for name in lines[0]:
            table.add_column(name, justify="right")
        references = len({self.frame.own(domain) for domain in self.domains})
        for number, (row, cells) in enumerate(zip(self.rows, lines, strict=True), start=1):
            table.add_row(shown(row), *cells.values(), end_section=number == references)
        return table

    def scored(self) -> str:
        """The scored text, and the meaning of the errors."""
        texts = {domain: self._own(domain) for domain in self.domains}
        if self.base:
            texts[self.frame.elsewhere] = self.base
        scored = ", ".join(f"{name} {total(text).tokens:,} in {len(text)}" for name, text in texts.items())
        seed = f". {self.frame.elsewhere}: {self.frame.elsewhere_text}, 100 = the seed model" if self.base else ""
        return f"Scored tokens in documents: {scored}{seed}. ± standard error over documents and seeds"

    def _scores(self, row: Row) -> dict[str, str]:
        cells = {domain: f"{self.normalised(row, domain).mean:.1f}" for domain in self.domains}
        cells["average"] = str(self.average(row))
        if self.against is not None:
            cells[f"to {self.against}"] = _signed(self.difference(row))
        if self.base:
            cells[self.frame.elsewhere] = str(self.elsewhere(row) or "")
            if self.against is not None:
                cells[f"to {self.against}, there"] = _signed(self.difference(row, self.elsewhere))
        return cells

    def _costs(self, row: Row) -> dict[str, str]:
        memory = "" if row.peak_memory is None else f"{row.peak_memory / 1e6:,.0f} MB"
        cells = {"active": parameters(row.active_parameters)}
        if any(item.trained for item in self.rows):
            cells["trained"] = parameters(row.trained.parameters) if row.trained else ""
            cells["tokens"] = f"{row.trained.tokens:,}" if row.trained else ""
        return {**cells, "seconds": f"{row.seconds:.1f}", "memory": memory}

    def _by_band(self) -> RichTable:
        caption = f"{RECOVERED} again: tokens after which it stays at {RECOVERED} or more"
        table = RichTable("recipe", title="Average by tokens since the change of text", caption=caption)
        for edge, after in zip(self.edges, [*self.edges[1:], None], strict=True):
            table.add_column(f"{edge} to {after - 1}" if after else f"from {edge}", justify="right")
        table.add_column(f"{RECOVERED} again", justify="right")
        experts = {self.frame.own(domain) for domain in self.domains}
        for row in self.rows:
            if row.name not in experts:
                again = self.recovers(row)
                table.add_row(
                    shown(row),
                    *(f"{figure.mean:.1f}" for figure in self.bands(row)),
                    "no" if again is None else str(again),
                )
        return table

    def _routing(self, row: Row) -> RichTable:
        table = RichTable("text of", title="Share of tokens per expert, over all layers")
        for slot in self.domains:
            table.add_column(expert_row(slot), justify="right")
        for domain, shares in row.shares().items():
            table.add_row(domain, *[f"{100 * share:.0f} %" for share in shares])
        return table


def shown(row: Row) -> str:
    """A row's name with its chosen options, marked if it reads ahead."""
    chosen = {name: " or ".join(f"{value:.2g}" for value in sorted(set(values))) for name, values in row.chosen.items()}
    name = " ".join([row.name, *(f"({option}={values})" for option, values in chosen.items())])
    return f"{name} {AHEAD}" if row.run.recipe.reads_ahead else name


def parameters(number: float) -> str:
    """A number of parameters, such as 3.4 M."""
    return f"{number / 1e6:,.1f} M"


def _signed(difference: Figure | None) -> str:
    return "" if difference is None else f"{difference.mean:+.1f}{difference.spread}"


def _figures(row: Row, figure: Figure) -> dict[str, object]:
    return {
        "recipe": row.run.recipe.name,
        "options": dict(row.run.options),
        "chosen": row.chosen,
        "row": row.name,
        "score": figure.mean,
        "error": figure.error,
        "deviation": figure.deviation,
        "scores": list(figure.values),
        "seeds": len(figure.values),
        "active_parameters": row.active_parameters,
        "trained": row.trained._asdict() if row.trained else None,
        "seconds": row.seconds,
        "peak_memory": row.peak_memory,
        "reads_ahead": row.run.recipe.reads_ahead,
    }
