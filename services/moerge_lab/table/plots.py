"""The table as a standalone SVG: a row of dots per model, or for a sweep, a curve per recipe."""

from collections.abc import Sequence

import svg

from moerge import charts
from moerge.charts import CHARACTER, MARGIN, Curve, Scale, colour, line, plot, scale, text, whole
from moerge_lab.recipes.registry import label_of
from moerge_lab.table.figure import Figure
from moerge_lab.table.table import AHEAD, Row, Table, parameters, shown

_ROW = 24
_PLOT = 440
_AVERAGE, _ACTIVE, _ELSEWHERE = 90, 160, 250  # distances of the columns' right ends from the plot's
_HIGH, _WIDE = 300, 460
_TICKS = 8


def picture(table: Table, option: str | None = None) -> str:
    """The table as SVG; with a swept option, the average over its values."""
    return _dots(table) if option is None else _curves(table, option)


def _below(table: Table) -> str:
    return f"100 is {table.frame.hundred}; higher is better"


def _dots(table: Table) -> str:
    """A row per model, best first: its domains' scores, their average, and its active parameters."""
    rows = sorted(table.rows, key=lambda row: -table.average(row).mean)
    left, high = MARGIN + 14 + CHARACTER * max(len(shown(row)) for row in rows), _ROW * len(rows)
    wide = _ELSEWHERE if table.base else _ACTIVE
    places = scale([100.0, *(score for row in rows for score in _domain_scores(table, row))], _TICKS, span=1)
    heads = {_AVERAGE: "average", _ACTIVE: "active"} | ({_ELSEWHERE: table.frame.elsewhere} if table.base else {})
    parts: list[svg.Element] = [text(100, -8, head, "tick", anchor="end", dx=dx) for dx, head in heads.items()]
    for tick in places.ticks:
        x = 100 * places.share(tick)
        parts.append(line(x, x, 0, "goal" if tick == 100 else "grid", to=high))
        parts.append(text(x, high + 16, f"{tick:g}", "tick", anchor="middle"))
    for number, row in enumerate(rows):
        parts += _dot_row(table, row, _ROW * (number + 0.5), places, MARGIN - left)
    if any(row.run.recipe.reads_ahead for row in rows):
        note = f"{AHEAD} chooses experts by the whole window, including scored tokens"
        parts.append(text(0, high + 42, note, "tick", dx=MARGIN - left))
    parts = [*_legend(table.domains), plot(left, 104, _PLOT, parts)]
    title = "Normalised perplexity of each recipe"
    return whole(title, _below(table), left + _PLOT + wide + MARGIN, 104 + high + 34 + MARGIN, parts)


def _legend(domains: Sequence[str]) -> list[svg.Element]:
    dx, parts = float(MARGIN), list[svg.Element]()
    for number, domain in enumerate(domains):
        parts.append(text(0, 70, f"● {domain}", "label", colour(number), dx=dx))
        dx += 28 + CHARACTER * len(domain)
    return [*parts, text(0, 70, "❙ average", dx=dx)]


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
    """The normalised average over the option's values, a curve per recipe."""
    lines: dict[str, dict[float, Figure]] = {}
    for row in table.rows:
        if option in row.run.options:
            others = {name: value for name, value in row.run.options.items() if name != option}
            name = row.name.replace(row.run.label, label_of(row.run.recipe, others), 1)
            lines.setdefault(name, {})[float(row.run.options[option])] = table.average(row)
    values = sorted({value for points in lines.values() for value in points})
    curves = [
        Curve(
            name,
            [points[value].mean if value in points else None for value in values],
            colour(number),
            [_error(points[value]) if value in points else 0.0 for value in values],
            marked=True,
        )
        for number, (name, points) in enumerate(lines.items())
    ]
    ends = [
        item.mean + sign * _error(item) for points in lines.values() for item in points.values() for sign in (-1, 1)
    ]
    below = text(50, _HIGH + 38, option, "tick", anchor="middle")
    ticks = [f"{value:g}" for value in values]
    parts = [below, *charts.line_chart(curves, ticks, scale(ends, _TICKS, span=1), _HIGH, (_WIDE, _WIDE))]
    left = MARGIN + 30
    width = left + _WIDE + 16 + CHARACTER * max(map(len, lines)) + MARGIN
    title = f"Normalised average of each recipe by {option}"
    return whole(title, _below(table), width, _HIGH + 118, [plot(left, 64, _WIDE, parts)])


def _error(figure: Figure) -> float:
    """The standard error; if unknown, the deviation over seeds."""
    return figure.deviation if figure.error is None else figure.error
