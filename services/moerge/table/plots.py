"""The table as a standalone SVG: a row of dots per model, or for a sweep, a curve per recipe."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from html import escape

import svg

from moerge.recipes.registry import label_of
from moerge.table.joining_results import Growth
from moerge.table.table import AHEAD, ELSEWHERE, Figure, Row, Table, parameters, shown

_STYLE = """
svg { --page: #fbfbfa; --ink: #1b2226; --soft: #566167; --line: #dfe3e4; --tint: #f1f4f4; --accent: #0f6e84;
  --c0: #0072b2; --c1: #b34700; --c2: #007a5a; --c3: #a8488a; --c4: #8a6a00; --c5: #3d6fd6; --c6: #6b5b95;
  --c7: #5a5a5a;
  font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
@media (prefers-color-scheme: dark) {
  svg { --page: #12171a; --ink: #e6ebed; --soft: #a3afb5; --line: #2e383d; --tint: #1a2125; --accent: #62c3d8;
    --c0: #5fb4f0; --c1: #ff9b57; --c2: #3fcf9f; --c3: #e48bc6; --c4: #e0bd4a; --c5: #94b2ff; --c6: #bba9e8;
    --c7: #b5b5b5; } }
.page { fill: var(--page); } .tint { fill: var(--tint); }
text { fill: var(--ink); font-variant-numeric: tabular-nums; } .soft { fill: var(--soft); font-size: 11px; }
.title { font-size: 15px; font-weight: 600; } .group { fill: var(--soft); font-weight: 600; }
.grid { stroke: var(--line); } .goal { stroke: var(--soft); stroke-dasharray: 3 3; }
.range { stroke: var(--line); stroke-width: 3; stroke-linecap: round; }
.mean { fill: var(--ink); } .spread { fill: var(--accent); opacity: 0.3; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; } .whisker { stroke-width: 1.5; }
"""
_COLOURS = 8
_CHARACTER = 6.7  # width of a small letter in wide fonts
_ROW, _MARGIN = 24, 24
_PLOT = 440
_ELSEWHERE = 250  # distance of that column's right end from the plot's
_HIGH, _WIDE = 300, 460
_TICKS = 8


def picture(table: Table, option: str | None = None) -> str:
    """The table as SVG; with a swept option, the average over its values."""
    return _dots(table) if option is None else _curves(table, option)


def _dots(table: Table) -> str:
    """A row per model, best first: its domains' scores, their average, and its active parameters."""
    groups = _groups(table)
    left = _MARGIN + 14 + _CHARACTER * max(len(shown(row)) for row in table.rows)
    right = left + _PLOT
    low, high, ticks = _scale([score for row in table.rows for score in _domain_scores(table, row)], 100.0)
    place = _placer(low, high, left, right)
    parts = _heading("Normalised perplexity", "100 is each domain's own dense expert; higher is better")
    parts += _legend(table.domains, 66)
    top = 104.0
    parts.append(_text(right + 90, top - 8, "average", "soft", anchor="end"))
    parts.append(_text(right + 160, top - 8, "active", "soft", anchor="end"))
    if table.base:
        parts.append(_text(right + _ELSEWHERE, top - 8, ELSEWHERE, "soft", anchor="end"))
    end_of_rows = right + (_ELSEWHERE if table.base else 160)
    y = top
    for heading, rows in groups:
        parts.append(_text(_MARGIN, y + 16, heading, "group"))
        y += _ROW
        end = y + _ROW * len(rows)
        for number in range(0, len(rows), 2):
            parts.append(_box(_MARGIN - 8, y + _ROW * number, end_of_rows + 16 - _MARGIN, _ROW, "tint"))
        parts += [_line(place(tick), y, place(tick), end, "goal" if tick == 100 else "grid") for tick in ticks]
        for row in rows:
            parts += _dot_row(table, row, y + _ROW / 2, place, right)
            y += _ROW
        y += _ROW / 3
    parts += [_text(place(tick), y + 8, f"{tick:g}", "soft", anchor="middle") for tick in ticks]
    if any(row.run.recipe.reads_ahead for row in table.rows):
        y += _ROW
        note = f"{AHEAD} chooses experts by the whole window, including scored tokens"
        parts.append(_text(_MARGIN, y + 10, note, "soft"))
    return _whole("Normalised perplexity of each recipe", end_of_rows + _MARGIN, y + _MARGIN + 4, parts)


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
        _text(_MARGIN, y + 4, shown(row)),
        _line(place(min(scores)), y, place(max(scores)), y, "range"),
        _box(low, y - 9, high - low, 18, "spread"),
    ]
    for number, (domain, score) in enumerate(zip(table.domains, scores, strict=True)):
        parts.append(_circle(place(score), y, 4, number, f"{shown(row)}, {domain}: {score:.1f}"))
    mean = _box(place(average.mean) - 1.5, y - 9, 3, 18, "mean")
    mean.elements = [_title(f"{shown(row)}, average: {average}")]
    return [
        *parts,
        mean,
        _text(right + 48, y + 4, f"{average.mean:.1f}", anchor="end"),
        _text(right + 54, y + 4, average.spread.strip(), "soft"),
        _text(right + 160, y + 4, parameters(row.active_parameters), anchor="end"),
        *([] if abroad is None else [_text(right + _ELSEWHERE, y + 4, str(abroad), anchor="end")]),
    ]


def _legend(domains: Sequence[str], y: float) -> list[svg.Element]:
    x, parts = float(_MARGIN), list[svg.Element]()
    for number, domain in enumerate(domains):
        parts += [_circle(x + 4, y - 4, 4, number, domain), _text(x + 13, y, domain, "soft")]
        x += 28 + _CHARACTER * len(domain)
    return [*parts, _box(x + 4, y - 12, 3, 14, "mean"), _text(x + 13, y, "average", "soft")]


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
    return _plot(option, [_said(option, value) for value in values], curves)


def growth_picture(growth: Growth) -> str:
    """The normalised average of each version as experts join, with the trunk kept and remerged, as SVG."""
    curves: dict[str, list[Figure | None]] = {}
    for each in growth.recipes:
        curves[f"{each.run.label}, kept"] = [version.average for version in each.kept]
        remerged = [remerge.merged.average for remerge in each.joining]
        curves[f"{each.run.label}, remerged"] = [each.kept[0].average, *remerged]
    return _plot("version", [str(number + 1) for number in range(max(map(len, curves.values())))], curves)


def _plot(over: str, ticks: Sequence[str], curves: Mapping[str, Sequence[Figure | None]]) -> str:
    """A curve per name over equally distant ticks; None: no point."""
    left, top = float(_MARGIN + 30), 64.0
    right, bottom = left + _WIDE, top + _HIGH
    figures = [figure for curve in curves.values() for figure in curve if figure is not None]
    ends = [each.mean + sign * _error(each) for each in figures for sign in (-1, 1)]
    low, high, grid = _scale(ends)
    place = _placer(low, high, bottom, top)
    across = _placer(-0.5, len(ticks) - 0.5, left, right)
    parts = _heading(f"Normalised average by {over}", "100 is each domain's own dense expert; higher is better")
    for tick in grid:
        parts.append(_line(left, place(tick), right, place(tick), "grid"))
        parts.append(_text(left - 8, place(tick) + 4, f"{tick:g}", "soft", anchor="end"))
    for number, said in enumerate(ticks):
        parts.append(_text(across(number), bottom + 18, said, "soft", anchor="middle"))
    parts.append(_text((left + right) / 2, bottom + 38, over, "soft", anchor="middle"))
    labels: list[tuple[float, str, int]] = []
    for number, (name, curve) in enumerate(curves.items()):
        points = [(across(step), each) for step, each in enumerate(curve) if each is not None]
        flat = [svg.Point(round(x, 1), round(place(each.mean), 1)) for x, each in points]
        parts.append(svg.Polyline(points=flat, class_=["curve"], style=f"stroke: var(--c{number % _COLOURS})"))
        for x, each in points:
            if error := _error(each):
                whisker = _line(x, place(each.mean - error), x, place(each.mean + error), "whisker")
                whisker.style = f"stroke: var(--c{number % _COLOURS})"
                parts.append(whisker)
            parts.append(_circle(x, place(each.mean), 3.5, number, f"{name}: {each.mean:.1f} ± {error:.1f}"))
        labels.append((place(points[-1][1].mean), name, number))
    parts += _end_labels(labels, right + 8)
    width = right + 16 + _CHARACTER * max(map(len, curves)) + _MARGIN
    return _whole(f"Normalised average of each recipe by {over}", width, bottom + 54, parts)


def _error(figure: Figure) -> float:
    """The standard error; if unknown, the deviation over seeds."""
    return figure.deviation if figure.error is None else figure.error


def _end_labels(labels: list[tuple[float, str, int]], x: float) -> list[svg.Element]:
    """The curves' names at their ends, moved apart to avoid overlap."""
    parts, lowest = list[svg.Element](), -math.inf
    for y, name, number in sorted(labels):
        lowest = max(y + 4, lowest + 15)
        label = _text(x, lowest, name)
        label.style = f"fill: var(--c{number % _COLOURS})"
        parts.append(label)
    return parts


def _rank(option: str, value: float) -> float:
    return math.inf if option == "tokens" and value == 0 else value


def _said(option: str, value: float) -> str:
    return "all" if option == "tokens" and value == 0 else f"{value:g}"


def _scale(values: Sequence[float], *further: float) -> tuple[float, float, list[float]]:
    """Round ends around the values, and round ticks between."""
    low, high = min((*values, *further)), max((*values, *further))
    if high - low < 1:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    unit = power * next(each for each in (1, 2, 5, 10) if power * each >= raw * (1 - 1e-9))
    first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return first * unit, last * unit, [round(unit * each, 9) for each in range(first, last + 1)]


def _placer(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    """From values between low and high to places between start and stop."""
    return lambda value: start + (stop - start) * (value - low) / (high - low)


def _heading(title: str, below: str) -> list[svg.Element]:
    return [_text(_MARGIN, 28, title, "title"), _text(_MARGIN, 46, below, "soft")]


def _text(x: float, y: float, content: str, *kinds: str, anchor: str = "start") -> svg.Text:
    place = {"text-anchor": anchor}
    return svg.Text(x=round(x, 1), y=round(y, 1), text=escape(content), class_=list(kinds) or None, extra=place)


def _title(content: str) -> svg.Title:
    return svg.Title(text=escape(content))


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> svg.Line:
    return svg.Line(x1=round(x1, 1), y1=round(y1, 1), x2=round(x2, 1), y2=round(y2, 1), class_=[kind])


def _box(x: float, y: float, width: float, height: float, kind: str) -> svg.Rect:
    return svg.Rect(
        x=round(x, 1), y=round(y, 1), width=round(width, 1), height=height, rx=min(4, width / 2), class_=[kind]
    )


def _circle(x: float, y: float, r: float, colour: int, said: str) -> svg.Circle:
    style = f"fill: var(--c{colour % _COLOURS})"
    return svg.Circle(cx=round(x, 1), cy=round(y, 1), r=r, style=style, elements=[_title(said)])


def _whole(title: str, width: float, height: float, elements: Sequence[svg.Element]) -> str:
    page = svg.Rect(x=0, y=0, width=round(width), height=round(height), rx=8, class_=["page"])
    drawing = svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, round(width), round(height)),
        width=round(width),
        height=round(height),
        extra={"role": "img", "aria-label": escape(title)},
        elements=[_title(title), svg.Style(text=_STYLE), page, *elements],
    )
    return drawing.as_str() + "\n"
