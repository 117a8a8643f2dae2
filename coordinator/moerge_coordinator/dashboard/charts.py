"""Charts as SVG. Colours are classes of the style sheet; every chart has a title, and its page a table behind it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import svg
from markupsafe import Markup, escape

from moerge_coordinator.dashboard.formatting import step

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 580, 220, 44, 104, 12, 26
_COLOURS = 8
_TICKS = 4
_CHARACTER = 6.2  # width of a small letter
_ROW = 18


def _text(x: float, y: float, content: str, *kinds: str, anchor: str = "start") -> svg.Text:
    place = {"text-anchor": anchor}
    return svg.Text(x=round(x, 1), y=round(y, 1), text=str(escape(content)), class_=list(kinds) or None, extra=place)


def _title(content: str) -> svg.Title:
    return svg.Title(text=str(escape(content)))


def _whole(title: str, width: float, height: float, elements: Sequence[svg.Element]) -> Markup:
    """The picture; `elements` must have escaped their texts, which `_text` and `_title` do."""
    picture = svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, round(width), round(height)),
        width=round(width),
        height=round(height),
        class_=["chart"],
        extra={"role": "img", "aria-label": str(escape(title))},
        elements=[_title(title), *elements],
    )
    return Markup(picture.as_str())  # noqa: S704  # escaped above


def colour(index: int) -> str:
    """The class of the index-th of several things."""
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
    """A picture of lines, and the numbers behind it: name -> values at the places `across`."""

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
    powers: bool = False,
) -> Curves:
    """A line for each name over the same places; None leaves a gap. `main` stands out.

    With `powers`, values are exponents of ten, and ticks say so.
    """
    known = [value for line in values.values() for value in line if value is not None]
    heights = scale(known, 1 if powers else 0)
    parts: list[svg.Element] = []
    for tick in heights.ticks:
        y = round(heights.place(tick), 1)
        label = f"1e{tick:g}" if powers else f"{tick:g}"
        parts += [svg.Line(x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_=["grid"])]
        parts += [_text(_LEFT - 6, y + 4, label, "tick", anchor="end")]
    xs = _places(len(across))
    every = math.ceil(len(across) * (max(len(each) for each in across) + 2) * _CHARACTER / (_WIDTH - _LEFT - _RIGHT))
    for x, label in list(zip(xs, across, strict=True))[:: max(every, 1)]:
        parts.append(_text(x, _HEIGHT - 8, label, "tick", anchor="middle"))
    ends: list[tuple[float, str, str]] = []
    for index, name in enumerate(names):
        kind = "main" if name == main else colour(index)
        line = zip(xs, values[name], strict=True)
        points = [(x, heights.place(value)) for x, value in line if value is not None]
        if not points:
            continue
        if len(points) > 1:
            flat = [svg.Point(round(x, 1), round(y, 1)) for x, y in points]
            parts.append(svg.Polyline(points=flat, class_=["line", kind]))
        if len(points) == 1 or (name == main and len(points) <= 60):
            parts += [svg.Circle(cx=round(x, 1), cy=round(y, 1), r=3, class_=["dot", kind]) for x, y in points]
        ends.append((points[-1][1], name, kind))
    parts += _end_labels(ends)
    return Curves(_whole(title, _WIDTH, _HEIGHT, parts), names, values, across)


def _places(count: int) -> list[float]:
    width = _WIDTH - _LEFT - _RIGHT
    return [_LEFT + width * (index + 0.5) / count for index in range(count)]


def _end_labels(ends: list[tuple[float, str, str]]) -> list[svg.Element]:
    """The lines' names at their ends, moved apart where they would lie on each other."""
    parts: list[svg.Element] = []
    lowest = -math.inf
    for y, name, kind in sorted(ends):
        at = max(y + 4, lowest + 12)
        lowest = at
        shown = name if len(name) <= 14 else f"{name[:13]}…"
        parts.append(_text(_WIDTH - _RIGHT + 8, at, shown, "label", kind))
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
    left = max(len(name) for name in rows) * _CHARACTER + 14
    width = min(max(420 / max(columns, 1), 8), 46)
    parts: list[svg.Element] = []
    for row, (name, line) in enumerate(zip(rows, values, strict=True)):
        parts.append(_text(left - 8, row * _ROW + 13, name, "tick", anchor="end"))
        for column, value in enumerate(line):
            shown = f"{100 * value:.1f} %" if percent else f"{value:.3g}"
            parts.append(
                svg.Rect(
                    x=round(left + column * width, 1),
                    y=row * _ROW,
                    width=round(width - 1, 1),
                    height=_ROW - 1,
                    class_=["cell", step(value, low, high)],
                    elements=[_title(f"{name}, layer {column}: {shown}")],
                )
            )
    bottom = len(rows) * _ROW
    for column in {0, columns - 1}:
        parts.append(_text(left + (column + 0.5) * width, bottom + 12, str(column), "tick", anchor="middle"))
    return _whole(title, left + columns * width + 8, bottom + 18, parts)


@dataclass(frozen=True)
class Node:
    """A box of the lineage graph: its name, the words below it, and the nodes that it is made of."""

    name: str
    said: str
    sources: tuple[int, ...] = ()


def graph(title: str, columns: Sequence[tuple[str, Sequence[Node]]]) -> Markup:
    """Boxes in columns; a node's sources are numbered through all columns, from the left."""
    wide, high, apart, top = 176, 38, 10, 26
    step_x = wide + 56
    tallest = max((len(nodes) for _, nodes in columns), default=1)
    height = top + tallest * (high + apart)
    places: list[tuple[float, float]] = []
    parts: list[svg.Element] = []
    boxes: list[svg.Element] = []
    for column, (heading, nodes) in enumerate(columns):
        x = column * step_x
        parts.append(_text(x + 2, 14, heading, "tick"))
        first = top + (height - top - len(nodes) * (high + apart)) / 2
        for index, node in enumerate(nodes):
            y = first + index * (high + apart)
            for source in node.sources:
                from_x, from_y = places[source][0] + wide, places[source][1] + high / 2
                middle = (from_x + x) / 2
                curve: list[svg.PathData] = [
                    svg.M(round(from_x, 1), round(from_y, 1)),
                    svg.C(*[round(each, 1) for each in (middle, from_y, middle, y + high / 2, x, y + high / 2)]),
                ]
                parts.append(svg.Path(d=curve, class_=["edge"]))
            boxes += [
                svg.Rect(x=x, y=round(y, 1), width=wide, height=high, rx=5, class_=["node"]),
                _text(x + 10, y + 16, _short(node.name), "name"),
                _text(x + 10, y + 30, _short(node.said), "tick"),
            ]
            places.append((x, y))
    return _whole(title, (len(columns) - 1) * step_x + wide + 2, height, [*parts, *boxes])


def _short(text: str) -> str:
    return text if len(text) <= 26 else f"{text[:25]}…"
