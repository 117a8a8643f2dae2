"""The table as a standalone SVG: a row of dots per model, or for a sweep, a curve per recipe."""

import math
import statistics
from collections.abc import Mapping, Sequence

import svg

from moerge import charts
from moerge.charts import CHARACTER, MARGIN, Curve, Scale, colour, line, plot, scale, text, whole
from moerge_lab.recipes.registry import label_of
from moerge_lab.table.figure import Figure
from moerge_lab.table.frame import Frame
from moerge_lab.table.table import AHEAD, Row, Table, parameters, shown

_ROW = 24
_PLOT = 440
_AVERAGE, _ACTIVE, _ELSEWHERE = 90, 160, 250  # distances of the columns' right ends from the plot's
_HIGH, _WIDE = 300, 460
_TICKS = 8


def picture(table: Table, option: str | None = None) -> str:
    """The table as SVG; with a swept option, the average over its values."""
    return _dots(table) if option is None else _curves(table, option)


def _below(frame: Frame) -> str:
    return f"100 is {frame.hundred}; higher is better"


def _dots(table: Table) -> str:
    """A row per model, best first: its domains' scores, their average, and its active parameters."""
    left = MARGIN + 14 + CHARACTER * max(len(shown(row)) for row in table.rows)
    wide = _ELSEWHERE if table.base else _ACTIVE
    places = scale([100.0, *(score for row in table.rows for score in _domain_scores(table, row))], _TICKS, span=1)
    heads = {_AVERAGE: "average", _ACTIVE: "active"} | ({_ELSEWHERE: table.frame.elsewhere} if table.base else {})
    parts: list[svg.Element] = [text(100, -8, head, "tick", anchor="end", dx=dx) for dx, head in heads.items()]
    y = 0.0
    for heading, rows in _groups(table):
        parts.append(text(0, y + 16, heading, "group", dx=MARGIN - left))
        y += _ROW
        stripes = range(0, len(rows), 2)
        parts += [_stripe(y + _ROW * number, MARGIN - left - 8, _PLOT + wide + 8) for number in stripes]
        for tick in places.ticks:
            x = 100 * places.share(tick)
            parts.append(line(x, x, y, "goal" if tick == 100 else "grid", to=y + _ROW * len(rows)))
        for row in rows:
            parts += _dot_row(table, row, y + _ROW / 2, places, MARGIN - left)
            y += _ROW
        y += _ROW / 3
    parts += [text(100 * places.share(tick), y + 8, f"{tick:g}", "tick", anchor="middle") for tick in places.ticks]
    if any(row.run.recipe.reads_ahead for row in table.rows):
        y += _ROW
        note = f"{AHEAD} chooses experts by the whole window, including scored tokens"
        parts.append(text(0, y + 10, note, "tick", dx=MARGIN - left))
    parts = [*_legend(table.domains), plot(left, 104, _PLOT, parts)]
    title = "Normalised perplexity of each recipe"
    return whole(title, _below(table.frame), left + _PLOT + wide + MARGIN, 104 + y + MARGIN + 4, parts)


def _legend(domains: Sequence[str]) -> list[svg.Element]:
    dx, parts = float(MARGIN), list[svg.Element]()
    for number, domain in enumerate(domains):
        parts.append(text(0, 70, f"● {domain}", "label", colour(number), dx=dx))
        dx += 28 + CHARACTER * len(domain)
    return [*parts, text(0, 70, "❙ average", dx=dx)]


def _stripe(y: float, left: float, right: float) -> svg.Rect:
    return svg.Rect(x=round(left), y=round(y, 1), width=round(right - left), height=_ROW, rx=4, class_=["tint"])


def _groups(table: Table) -> list[tuple[str, list[Row]]]:
    """Rows in two groups by active parameters, compared with a dense expert, each best first."""
    own = statistics.fmean(row.active_parameters for row in table.rows if row.run is table.rows[0].run)
    ordered = sorted(table.rows, key=lambda row: -table.average(row).mean)
    alike = [row for row in ordered if row.active_parameters <= 1.1 * own]
    more = [row for row in ordered if row.active_parameters > 1.1 * own]
    groups = [("About as many active parameters as one dense expert", alike), ("More active parameters", more)]
    return [(heading, rows) for heading, rows in groups if rows]


def _domain_scores(table: Table, row: Row) -> list[float]:
    return [table.normalised(row, domain).mean for domain in table.domains]


def _dot_row(table: Table, row: Row, y: float, places: Scale, start: float) -> list[svg.Element]:
    scores, average, elsewhere = _domain_scores(table, row), table.average(row), table.elsewhere(row)
    error = average.error or 0.0
    low, mean, high = (100 * places.share(average.mean + sign * error) for sign in (-1, 0, 1))
    centre = line(mean, mean, y - 9, "mean", to=y + 9)
    centre.elements = [charts.tooltip(f"{shown(row)}, average: {average}")]
    first, last = (100 * places.share(end) for end in (min(scores), max(scores)))
    return [
        text(0, y + 4, shown(row), dx=start),
        line(first, last, y, "range"),
        charts.box(low, y - 9, high - low, 18, "spread"),
        *(
            charts.dot(100 * places.share(score), y, colour(number), f"{shown(row)}, {domain}: {score:.1f}")
            for number, (domain, score) in enumerate(zip(table.domains, scores, strict=True))
        ),
        centre,
        text(100, y + 4, f"{average.mean:.1f}", anchor="end", dx=_AVERAGE - 42),
        text(100, y + 4, average.spread.strip(), "tick", dx=_AVERAGE - 36),
        text(100, y + 4, parameters(row.active_parameters), anchor="end", dx=_ACTIVE),
        *([] if elsewhere is None else [text(100, y + 4, str(elsewhere), anchor="end", dx=_ELSEWHERE)]),
    ]


def _curves(table: Table, option: str) -> str:
    """The normalised average over the option's values, a curve per recipe; 0 tokens (all) comes last."""
    lines: dict[str, dict[float, Row]] = {}
    for row in table.rows:
        if option in row.run.options:
            others = {name: value for name, value in row.run.options.items() if name != option}
            name = row.name.replace(row.run.label, label_of(row.run.recipe, others), 1)
            lines.setdefault(name, {})[float(row.run.options[option])] = row
    values = sorted({value for line in lines.values() for value in line}, key=lambda value: _rank(option, value))
    curves = {
        name: [table.average(line[value]) if value in line else None for value in values]
        for name, line in lines.items()
    }
    return _plot(option, [_said(option, value) for value in values], curves, table.frame)


def _plot(over: str, ticks: Sequence[str], figures: Mapping[str, Sequence[Figure | None]], frame: Frame) -> str:
    """A curve per name over equally distant ticks; None: no point."""
    curves = [
        Curve(
            name,
            [None if figure is None else figure.mean for figure in curve],
            colour(number),
            [0.0 if figure is None else _error(figure) for figure in curve],
            marked=True,
        )
        for number, (name, curve) in enumerate(figures.items())
    ]
    known = [figure for curve in figures.values() for figure in curve if figure is not None]
    heights = scale([item.mean + sign * _error(item) for item in known for sign in (-1, 1)], _TICKS, span=1)
    below = text(50, _HIGH + 38, over, "tick", anchor="middle")
    parts = [below, *charts.line_chart(curves, ticks, heights, _HIGH, (_WIDE, _WIDE))]
    left = MARGIN + 30
    width = left + _WIDE + 16 + CHARACTER * max(map(len, figures)) + MARGIN
    title = f"Normalised average of each recipe by {over}"
    return whole(title, _below(frame), width, _HIGH + 118, [plot(left, 64, _WIDE, parts)])


def _error(figure: Figure) -> float:
    """The standard error; if unknown, the deviation over seeds."""
    return figure.deviation if figure.error is None else figure.error


def _rank(option: str, value: float) -> float:
    return math.inf if option == "tokens" and value == 0 else value


def _said(option: str, value: float) -> str:
    return "all" if option == "tokens" and value == 0 else f"{value:g}"
