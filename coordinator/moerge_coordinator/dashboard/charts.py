"""Charts as SVG, as wide as their container. Widths are in percent, so that text keeps its size; margins are in
style.css.

Colours are classes of the style sheet. Every chart has a title, and a table on its page.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import svg
from markupsafe import Markup, escape

from moerge_coordinator.dashboard.formatting import step

_HEIGHT, _TOP, _BOTTOM = 240, 12, 26
_NARROWEST, _WIDEST = 210, 1060  # pixels for the lines of a chart
_COLOURS = 8
_TICKS = 4
_CHARACTER = 6.2  # width of a small letter
_ROW = 18
_LABEL = 16  # characters of a line's name
_MARGINS = (48, 72, 96, 120, 144, 168)  # of row labels: the classes m0, m1, ...
_BOX, _BOX_HEIGHT, _APART, _GRAPH_TOP = 20, 38, 10, 26


def _percent(value: float) -> svg.Length:
    return svg.Length(round(value, 2), "%")


def _text(x: float, y: float, content: str, *kinds: str, anchor: str = "start", dx: float = 0) -> svg.Text:
    """A text at `x` percent, moved by `dx` pixels."""
    place = {"text-anchor": anchor}
    shown = str(escape(content))
    return svg.Text(x=_percent(x), dx=dx, y=round(y, 1), text=shown, class_=list(kinds) or None, extra=place)


def _title(content: str) -> svg.Title:
    return svg.Title(text=str(escape(content)))


def _whole(title: str, height: float, elements: Sequence[svg.Element], *kinds: str) -> Markup:
    """The picture; `elements` must have escaped their texts, which `_text` and `_title` do."""
    picture = svg.SVG(
        height=round(height),
        class_=["chart", *kinds],
        extra={"role": "img", "aria-label": str(escape(title))},
        elements=[_title(title), *elements],
    )
    return Markup(picture.as_str())  # noqa: S704  # escaped above


def _stretched(height: float, elements: Sequence[svg.Element]) -> svg.SVG:
    """Lines and curves, with x from 0 to 100, drawn over the whole width."""
    return svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, 100, round(height)),
        width=_percent(100),
        height=round(height),
        extra={"preserveAspectRatio": "none"},
        elements=list(elements),
    )


def colour(index: int) -> str:
    """The class of the index-th colour."""
    return f"c{index % _COLOURS}"


@dataclass(frozen=True)
class Scale:
    """From values to places on the picture; `ticks` are round values between the ends."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """y of a value."""
        share = (value - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def scale(values: Sequence[float], least: float = 0.0) -> Scale:
    """A scale of round ends around the values, with ticks at least so far apart."""
    low, high = min(values), max(values)
    if high == low:
        low, high = low - 1, high + 1
    raw = max((high - low) / _TICKS, least)
    power = 10.0 ** math.floor(math.log10(raw))
    unit = power * next(each for each in (1, 2, 5, 10) if power * each >= raw * (1 - 1e-9))
    first, last = math.floor(low / unit), math.ceil(high / unit)
    return Scale(first * unit, last * unit, tuple(unit * each for each in range(first, last + 1)))


@dataclass(frozen=True)
class Curves:
    """A picture of lines, and its numbers: name -> values at the places `across`."""

    picture: Markup
    names: Sequence[str]
    lines: Mapping[str, Sequence[float | None]]
    across: Sequence[str]


def curves(
    title: str,
    names: Sequence[str],
    values: Mapping[str, Sequence[float | None]],
    across: Sequence[str],
    main: str | None = None,
    *,
    dots: str | None = None,
    powers: bool = False,
) -> Curves:
    """A line for each name over the same places; None leaves a gap. `main` is heavier.

    The values of `dots` are not joined. With `powers`, values are exponents of ten, as are the ticks.
    """
    known = [value for line in values.values() for value in line if value is not None]
    heights = scale(known, 1 if powers else 0)
    parts: list[svg.Element] = []
    for tick in heights.ticks:
        y = round(heights.place(tick), 1)
        label = f"1e{tick:g}" if powers else f"{tick:g}"
        parts += [svg.Line(x1=0, x2=_percent(100), y1=y, y2=y, class_=["grid"])]
        parts += [_text(0, y + 4, label, "tick", anchor="end", dx=-6)]
    xs = [100 * (index + 0.5) / len(across) for index in range(len(across))]
    parts += _places(xs, across)
    lines: list[svg.Element] = []
    marks: list[svg.Element] = []
    ends: list[tuple[float, str, str]] = []
    for index, name in enumerate(names):
        kind = "main" if name in (main, dots) else colour(index)
        for run in _runs(xs, values[name], apart=name == dots):
            points = [(round(x, 2), round(heights.place(value), 1)) for x, value in run]
            if len(points) > 1:
                lines.append(svg.Polyline(points=[svg.Point(*each) for each in points], class_=["line", kind]))
            if len(points) == 1 or (name == main and len(across) <= 60):
                marks += [svg.Circle(cx=_percent(x), cy=y, r=3.5, class_=["dot", kind]) for x, y in points]
        if any(value is not None for value in values[name]):
            last = next(value for value in reversed(values[name]) if value is not None)
            ends.append((heights.place(last), name, kind))
    parts += [_stretched(_HEIGHT, lines), *marks, *_end_labels(ends)]
    return Curves(_whole(title, _HEIGHT, parts, "curves"), names, values, across)


def _places(xs: Sequence[float], across: Sequence[str]) -> list[svg.Element]:
    """Labels of places, as many as fit; wide charts also show those of class fine."""
    length = max(len(each) for each in across) + 2
    narrow, wide = (max(math.ceil(len(xs) * length * _CHARACTER / room), 1) for room in (_NARROWEST, _WIDEST))
    narrow = wide * math.ceil(narrow / wide)
    return [
        _text(xs[at], _HEIGHT - 8, across[at], "tick", *(["fine"] if at % narrow else []), anchor="middle")
        for at in range(0, len(xs), wide)
    ]


def _runs(xs: Sequence[float], line: Sequence[float | None], *, apart: bool) -> list[list[tuple[float, float]]]:
    """Successive known values, with their places; each alone if they are to be `apart`."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, value in zip(xs, line, strict=True):
        if value is None or apart:
            found.append([])
        if value is not None:
            found[-1].append((x, value))
    return [run for run in found if run]


def _end_labels(ends: list[tuple[float, str, str]]) -> list[svg.Element]:
    """The lines' names at their ends, moved apart to avoid overlap."""
    parts: list[svg.Element] = []
    lowest = -math.inf
    for y, name, kind in sorted(ends):
        at = max(y + 4, lowest + 12)
        lowest = at
        parts.append(_text(100, at, _short(name, _LABEL), "label", kind, dx=8))
    return parts


def heat(
    title: str,
    rows: Sequence[str],
    values: Sequence[Sequence[float]],
    low: float = 0.0,
    high: float = 1.0,
    *,
    percent: bool = True,
) -> Markup:
    """Cells of rows x columns, from low to high, each with its value on hover; columns are layers, from 0."""
    columns = len(values[0]) if values else 0
    wanted = max(len(name) for name in rows) * _CHARACTER + 10
    margin = next((index for index, width in enumerate(_MARGINS) if width >= wanted), len(_MARGINS) - 1)
    longest = int((_MARGINS[margin] - 10) / _CHARACTER)
    width = 100 / max(columns, 1)
    parts: list[svg.Element] = []
    for row, (name, line) in enumerate(zip(rows, values, strict=True)):
        parts.append(_text(0, row * _ROW + 13, _short(name, longest), "tick", anchor="end", dx=-8))
        for column, value in enumerate(line):
            shown = f"{100 * value:.1f} %" if percent else f"{value:.3g}"
            parts.append(
                svg.Rect(
                    x=_percent(column * width),
                    y=row * _ROW,
                    width=_percent(width),
                    height=_ROW - 1,
                    class_=["cell", step(value, low, high)],
                    elements=[_title(f"{name}, layer {column}: {shown}")],
                )
            )
    bottom = len(rows) * _ROW
    for column in {0, columns - 1}:
        parts.append(_text((column + 0.5) * width, bottom + 12, str(column), "tick", anchor="middle"))
    return _whole(title, bottom + 18, parts, "rows", f"m{margin}")


@dataclass(frozen=True)
class Node:
    """A box of the lineage graph: its name, the words below it, and its sources."""

    name: str
    said: str
    sources: tuple[int, ...] = ()


def graph(title: str, columns: Sequence[tuple[str, Sequence[Node]]]) -> Markup:
    """Boxes in columns; a node's sources are numbered through all columns, from the left."""
    step_x = (100 - _BOX) / max(len(columns) - 1, 1)
    tallest = max((len(nodes) for _, nodes in columns), default=1)
    height = _GRAPH_TOP + tallest * (_BOX_HEIGHT + _APART)
    places: list[tuple[float, float]] = []
    edges: list[svg.Element] = []
    boxes: list[svg.Element] = []
    for column, (heading, nodes) in enumerate(columns):
        x = column * step_x
        boxes.append(_text(x, 14, heading, "tick", dx=2))
        first = _GRAPH_TOP + (height - _GRAPH_TOP - len(nodes) * (_BOX_HEIGHT + _APART)) / 2
        for index, node in enumerate(nodes):
            y = first + index * (_BOX_HEIGHT + _APART)
            for source in node.sources:
                from_x, from_y, to_y = (
                    places[source][0] + _BOX,
                    places[source][1] + _BOX_HEIGHT / 2,
                    y + _BOX_HEIGHT / 2,
                )
                middle = (from_x + x) / 2
                curve: list[svg.PathData] = [
                    svg.M(round(from_x, 2), round(from_y, 1)),
                    svg.C(*[round(each, 2) for each in (middle, from_y, middle, to_y, x, to_y)]),
                ]
                edges.append(svg.Path(d=curve, class_=["edge"]))
            boxes += [
                svg.Rect(x=_percent(x), y=round(y, 1), width=_percent(_BOX), height=_BOX_HEIGHT, rx=5, class_=["node"]),
                _text(x, y + 16, _short(node.name, 26), "name", dx=10),
                _text(x, y + 30, _short(node.said, 26), "tick", dx=10),
            ]
            places.append((x, y))
    return _whole(title, height, [_stretched(height, edges), *boxes], "graph")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
