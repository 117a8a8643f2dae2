"""The table as a standalone SVG: a row of dots per model, or for a sweep, a curve per recipe."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import svg

from moerge import pictures
from moerge_lab.recipes.registry import label_of
from moerge_lab.table.figure import Figure
from moerge_lab.table.frame import Frame
from moerge_lab.table.table import AHEAD, Row, Table, parameters, shown

_ROW = 24
_PLOT = 440
_ELSEWHERE = 250  # distance of that column's right end from the plot's
_HIGH, _WIDE = 300, 460


def picture(table: Table, option: str | None = None) -> str:
    """The table as SVG; with a swept option, the average over its values."""
    return _dots(table) if option is None else _curves(table, option)


def _dots(table: Table) -> str:
    """A row per model, best first: its domains' scores, their average, and its active parameters."""
    groups = _groups(table)
    left = pictures.MARGIN + 14 + pictures.CHARACTER * max(len(shown(row)) for row in table.rows)
    right = left + _PLOT
    low, high, ticks = pictures.scale([score for row in table.rows for score in _domain_scores(table, row)], 100.0)
    place = pictures.placer(low, high, left, right)
    parts = pictures.heading("Normalised perplexity", f"100 is {table.frame.hundred}; higher is better")
    parts += _legend(table.domains, 66)
    top = 104.0
    parts.append(pictures.text(right + 90, top - 8, "average", "soft", anchor="end"))
    parts.append(pictures.text(right + 160, top - 8, "active", "soft", anchor="end"))
    if table.base:
        parts.append(pictures.text(right + _ELSEWHERE, top - 8, table.frame.elsewhere, "soft", anchor="end"))
    end_of_rows = right + (_ELSEWHERE if table.base else 160)
    y = top
    for heading, rows in groups:
        parts.append(pictures.text(pictures.MARGIN, y + 16, heading, "group"))
        y += _ROW
        end = y + _ROW * len(rows)
        for number in range(0, len(rows), 2):
            parts.append(
                pictures.box(pictures.MARGIN - 8, y + _ROW * number, end_of_rows + 16 - pictures.MARGIN, _ROW, "tint")
            )
        parts += [pictures.line(place(tick), y, place(tick), end, "goal" if tick == 100 else "grid") for tick in ticks]
        for row in rows:
            parts += _dot_row(table, row, y + _ROW / 2, place, right)
            y += _ROW
        y += _ROW / 3
    parts += [pictures.text(place(tick), y + 8, f"{tick:g}", "soft", anchor="middle") for tick in ticks]
    if any(row.run.recipe.reads_ahead for row in table.rows):
        y += _ROW
        note = f"{AHEAD} chooses experts by the whole window, including scored tokens"
        parts.append(pictures.text(pictures.MARGIN, y + 10, note, "soft"))
    return pictures.whole(
        "Normalised perplexity of each recipe", end_of_rows + pictures.MARGIN, y + pictures.MARGIN + 4, parts
    )


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


def _dot_row(table: Table, row: Row, y: float, place: Callable[[float], float], right: float) -> list[svg.Element]:
    scores, average = _domain_scores(table, row), table.average(row)
    error, abroad = average.error or 0.0, table.elsewhere(row)
    low, high = place(average.mean - error), place(average.mean + error)
    parts: list[svg.Element] = [
        pictures.text(pictures.MARGIN, y + 4, shown(row)),
        pictures.line(place(min(scores)), y, place(max(scores)), y, "range"),
        pictures.box(low, y - 9, high - low, 18, "spread"),
    ]
    for number, (domain, score) in enumerate(zip(table.domains, scores, strict=True)):
        parts.append(pictures.circle(place(score), y, 4, number, f"{shown(row)}, {domain}: {score:.1f}"))
    mean = pictures.box(place(average.mean) - 1.5, y - 9, 3, 18, "mean")
    mean.elements = [pictures.tooltip(f"{shown(row)}, average: {average}")]
    return [
        *parts,
        mean,
        pictures.text(right + 48, y + 4, f"{average.mean:.1f}", anchor="end"),
        pictures.text(right + 54, y + 4, average.spread.strip(), "soft"),
        pictures.text(right + 160, y + 4, parameters(row.active_parameters), anchor="end"),
        *([] if abroad is None else [pictures.text(right + _ELSEWHERE, y + 4, str(abroad), anchor="end")]),
    ]


def _legend(domains: Sequence[str], y: float) -> list[svg.Element]:
    x, parts = float(pictures.MARGIN), list[svg.Element]()
    for number, domain in enumerate(domains):
        parts += [pictures.circle(x + 4, y - 4, 4, number, domain), pictures.text(x + 13, y, domain, "soft")]
        x += 28 + pictures.CHARACTER * len(domain)
    return [*parts, pictures.box(x + 4, y - 12, 3, 14, "mean"), pictures.text(x + 13, y, "average", "soft")]


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


def _plot(over: str, ticks: Sequence[str], curves: Mapping[str, Sequence[Figure | None]], frame: Frame) -> str:
    """A curve per name over equally distant ticks; None: no point."""
    left, top = float(pictures.MARGIN + 30), 64.0
    right, bottom = left + _WIDE, top + _HIGH
    figures = [figure for curve in curves.values() for figure in curve if figure is not None]
    ends = [each.mean + sign * _error(each) for each in figures for sign in (-1, 1)]
    low, high, grid = pictures.scale(ends)
    place = pictures.placer(low, high, bottom, top)
    across = pictures.placer(-0.5, len(ticks) - 0.5, left, right)
    parts = pictures.heading(f"Normalised average by {over}", f"100 is {frame.hundred}; higher is better")
    for tick in grid:
        parts.append(pictures.line(left, place(tick), right, place(tick), "grid"))
        parts.append(pictures.text(left - 8, place(tick) + 4, f"{tick:g}", "soft", anchor="end"))
    for number, said in enumerate(ticks):
        parts.append(pictures.text(across(number), bottom + 18, said, "soft", anchor="middle"))
    parts.append(pictures.text((left + right) / 2, bottom + 38, over, "soft", anchor="middle"))
    labels: list[tuple[float, str, int]] = []
    for number, (name, curve) in enumerate(curves.items()):
        points = [(across(step), each) for step, each in enumerate(curve) if each is not None]
        flat = [svg.Point(round(x, 1), round(place(each.mean), 1)) for x, each in points]
        parts.append(svg.Polyline(points=flat, class_=["curve"], style=f"stroke: var(--c{number % pictures.COLOURS})"))
        for x, each in points:
            if error := _error(each):
                whisker = pictures.line(x, place(each.mean - error), x, place(each.mean + error), "whisker")
                whisker.style = f"stroke: var(--c{number % pictures.COLOURS})"
                parts.append(whisker)
            parts.append(pictures.circle(x, place(each.mean), 3.5, number, f"{name}: {each.mean:.1f} ± {error:.1f}"))
        labels.append((place(points[-1][1].mean), name, number))
    parts += pictures.end_labels(labels, right + 8)
    width = right + 16 + pictures.CHARACTER * max(map(len, curves)) + pictures.MARGIN
    return pictures.whole(f"Normalised average of each recipe by {over}", width, bottom + 54, parts)


def _error(figure: Figure) -> float:
    """The standard error; if unknown, the deviation over seeds."""
    return figure.deviation if figure.error is None else figure.error


def _rank(option: str, value: float) -> float:
    return math.inf if option == "tokens" and value == 0 else value


def _said(option: str, value: float) -> str:
    return "all" if option == "tokens" and value == 0 else f"{value:g}"
