"""Charts as SVG: scales, ticks, lines with their names at the ends, and standalone pictures that follow dark mode.

Charts fill their container: x and widths are in percent, `dx`, y and heights in pixels. Colours are the classes c0 to
c7, which set `--own`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import svg

CHARACTER = 6.7
"""Width of a small letter in wide fonts."""
_COLOURS = 8
_NAME_HEIGHT = 13
MARGIN = 24
_STYLE = """
svg { --page: #fbfbfa; --ink: #1b2226; --soft: #566167; --grid: #dfe3e4; --accent: #0f6e84;
  --c0: #0072b2; --c1: #b34700; --c2: #007a5a; --c3: #a8488a; --c4: #8a6a00; --c5: #3d6fd6; --c6: #6b5b95;
  --c7: #5a5a5a;
  font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
@media (prefers-color-scheme: dark) {
  svg { --page: #12171a; --ink: #e6ebed; --soft: #a3afb5; --grid: #2e383d; --accent: #62c3d8;
    --c0: #5fb4f0; --c1: #ff9b57; --c2: #3fcf9f; --c3: #e48bc6; --c4: #e0bd4a; --c5: #94b2ff; --c6: #bba9e8;
    --c7: #b5b5b5; } }
.page { fill: var(--page); }
text { fill: var(--ink); font-variant-numeric: tabular-nums; } .tick { fill: var(--soft); font-size: 11px; }
.title { font-size: 15px; font-weight: 600; } .group { fill: var(--soft); font-weight: 600; }
.grid { stroke: var(--grid); } .goal { stroke: var(--soft); stroke-dasharray: 3 3; }
.range { stroke: var(--grid); stroke-width: 3; stroke-linecap: round; }
.mean { stroke: var(--ink); stroke-width: 3; } .spread { fill: var(--accent); opacity: 0.3; }
.line { fill: none; stroke: var(--own); stroke-width: 2; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
.whisker { stroke: var(--own); stroke-width: 1.5; } .dot, .label, .cell { fill: var(--own); }
.cell { shape-rendering: crispEdges; }
""" + "".join(f".c{number} {{ --own: var(--c{number}); }}\n" for number in range(_COLOURS))


def style(place: str = "svg") -> str:
    """The style sheet, with its variables and font at a CSS selector."""
    return _STYLE.replace("svg {", f"{place} {{")


def colour(index: int) -> str:
    return f"c{index % _COLOURS}"


def round_up(value: float) -> float:
    """The least 1, 2 or 5 times a power of ten that is not below the value."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * next(unit for unit in (1, 2, 5, 10) if power * unit >= value * (1 - 1e-9))


@dataclass(frozen=True)
class Scale:
    """From values to shares of a length: 0 for `low`, 1 for `high`. `ticks` are round values between them."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


def scale(values: Sequence[float], ticks: int, *, step: float = 0.0, span: float = 0.0) -> Scale:
    """A scale of round ends around the values, with about so many ticks.

    `step` is the least distance of ticks, `span` that of the ends.
    """
    low, high = min(values), max(values)
    if high - low <= span:
        low, high = low - (span or 2) / 2, high + (span or 2) / 2
    unit = round_up(max((high - low) / ticks, step))
    first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return Scale(first * unit, last * unit, tuple(round(unit * number, 9) for number in range(first, last + 1)))


@dataclass(frozen=True)
class Curve:
    """A line over equally distant places; None leaves a gap. `kind` is the class of its colour.

    `errors` are whiskers. A lone value always has a mark; with `marked`, all have.
    """

    name: str
    values: Sequence[float | None]
    kind: str
    errors: Sequence[float] = ()
    joined: bool = True
    marked: bool = False

    def runs(self) -> list[list[int]]:
        """Indexes of successive known values; each alone if they are not joined."""
        runs: list[list[int]] = []
        for index in [index for index, value in enumerate(self.values) if value is not None]:
            if not (self.joined and runs and runs[-1][-1] == index - 1):
                runs.append([])
            runs[-1].append(index)
        return runs


def line_chart(
    curves: Sequence[Curve],
    across: Sequence[str],
    heights: Scale,
    height: float,
    rooms: tuple[float, float],
    *,
    shown: Callable[[float], str] = "{:g}".format,
    below: float = 18,
) -> list[svg.Element]:
    """Grid, ticks, lines, marks, and the lines' names at their ends. The plot is from y = 0 to `height`.

    `across` names the places, `below` the plot; `rooms` are pixels for the names in a narrow and a wide container.
    """

    def y(value: float) -> float:
        return height * (1 - heights.share(value))

    parts = _place_names(across, height + below, rooms)
    for tick in heights.ticks:
        parts += [line(0, 100, y(tick), "grid"), text(0, y(tick) + 4, shown(tick), "tick", anchor="end", dx=-8)]
    lines, marks, ends = list[svg.Element](), list[svg.Element](), list[tuple[float, str, str]]()
    for curve in curves:
        runs, known = curve.runs(), {index: y(value) for index, value in enumerate(curve.values) if value is not None}
        points = {index: svg.Point(round(_x(index, across), 2), round(value, 1)) for index, value in known.items()}
        long = [[points[index] for index in run] for run in runs if len(run) > 1]
        lines += [svg.Polyline(points=run, class_=["line", curve.kind]) for run in long]
        for index in [index for run in runs if len(run) == 1 or curve.marked for index in run]:
            marks += _marks(curve, index, _x(index, across), y)
        if known:
            ends.append((known[max(known)], curve.name, curve.kind))
    return [*parts, stretched(height, lines), *marks, *_end_names(ends)]


def _x(index: int, across: Sequence[str]) -> float:
    return 100 * (index + 0.5) / len(across)


def _marks(curve: Curve, index: int, x: float, y: Callable[[float], float]) -> list[svg.Element]:
    value, error = curve.values[index] or 0.0, curve.errors[index] if curve.errors else 0.0
    shown = f"{value:.1f} ± {error:.1f}" if curve.errors else f"{value:.3g}"
    whisker = [line(x, x, y(value - error), "whisker", curve.kind, to=y(value + error))] if error else []
    return [*whisker, dot(x, y(value), curve.kind, f"{curve.name}: {shown}")]


def _place_names(across: Sequence[str], y: float, rooms: tuple[float, float]) -> list[svg.Element]:
    """The names of places, as many as fit; those of class fine only in a wide container."""
    length = len(across) * (max(map(len, across)) + 2) * CHARACTER
    every = int(round_up(max(length / rooms[1], 1)))
    narrow = every * int(round_up(max(length / rooms[0] / every, 1)))
    return [
        text(_x(index, across), y, across[index], "tick", *(["fine"] if index % narrow else []), anchor="middle")
        for index in range(0, len(across), every)
    ]


def _end_names(ends: list[tuple[float, str, str]]) -> list[svg.Element]:
    """The lines' names at their ends, moved apart to avoid overlap."""
    parts, lowest = list[svg.Element](), -math.inf
    for y, name, kind in sorted(ends):
        lowest = max(y + 4, lowest + _NAME_HEIGHT)
        parts.append(text(100, lowest, name, "label", kind, dx=8))
    return parts


def percent(value: float) -> svg.Length:
    return svg.Length(round(value, 2), "%")


def text(x: float, y: float, content: str, *kinds: str, anchor: str = "start", dx: float = 0) -> svg.Text:
    place = {"text-anchor": anchor}
    return svg.Text(x=percent(x), dx=dx, y=round(y, 1), text=escape(content), class_=list(kinds) or None, extra=place)


def tooltip(content: str) -> svg.Title:
    return svg.Title(text=escape(content))


def line(x1: float, x2: float, y: float, *kinds: str, to: float | None = None) -> svg.Line:
    """A line at a height, or from it `to` another."""
    y2 = round(y if to is None else to, 1)
    return svg.Line(x1=percent(x1), x2=percent(x2), y1=round(y, 1), y2=y2, class_=list(kinds))


def box(x: float, y: float, width: float, height: float, *kinds: str, said: str = "") -> svg.Rect:
    """A rectangle; neighbours share their rounded edge."""
    rect = svg.Rect(x=percent(x), y=round(y, 1), height=height, class_=list(kinds))
    rect.width = percent(round(x + width, 2) - round(x, 2))
    rect.elements = [tooltip(said)] if said else None
    return rect


def dot(x: float, y: float, kind: str, said: str) -> svg.Circle:
    return svg.Circle(cx=percent(x), cy=round(y, 1), r=3.5, class_=["dot", kind], elements=[tooltip(said)])


def stretched(height: float, elements: Sequence[svg.Element]) -> svg.SVG:
    """Elements with x from 0 to 100, drawn over the whole width of the container."""
    return svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, 100, round(height)),
        width=percent(100),
        height=round(height),
        extra={"preserveAspectRatio": "none"},
        elements=list(elements),
    )


def plot(x: float, y: float, width: float, elements: Sequence[svg.Element]) -> svg.SVG:
    """The container of a chart in a standalone picture."""
    return svg.SVG(x=round(x), y=round(y), width=round(width), overflow="visible", elements=list(elements))


def whole(title: str, below: str, width: float, height: float, elements: Sequence[svg.Element]) -> str:
    """A standalone picture with a heading of two lines."""
    drawing = svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, round(width), round(height)),
        width=round(width),
        height=round(height),
        extra={"role": "img", "aria-label": escape(title)},
        elements=[
            tooltip(title),
            svg.Style(text=style()),
            svg.Rect(width=percent(100), height=percent(100), rx=8, class_=["page"]),
            text(0, 28, title, "title", dx=MARGIN),
            text(0, 46, below, "tick", dx=MARGIN),
            *elements,
        ],
    )
    return drawing.as_str() + "\n"
