"""Standalone SVG pictures: style, scales, and their simplest elements. Colours follow the reader's dark mode."""

import math
from collections.abc import Callable, Sequence
from html import escape

import svg

COLOURS = 8
"""The variables c0 to c7 of the style."""
CHARACTER = 6.7
"""Width of a small letter in wide fonts."""
MARGIN = 24
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
_TICKS = 8


def style(place: str = "svg") -> str:
    """The style sheet, with its variables and its font at a CSS selector."""
    return _STYLE.replace("svg {", f"{place} {{")


def scale(values: Sequence[float], *further: float) -> tuple[float, float, list[float]]:
    """Round ends around the values, and round ticks between."""
    low, high = min((*values, *further)), max((*values, *further))
    if high - low < 1:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    unit = power * next(each for each in (1, 2, 5, 10) if power * each >= raw * (1 - 1e-9))
    first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return first * unit, last * unit, [round(unit * each, 9) for each in range(first, last + 1)]


def placer(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    """From values between low and high to places between start and stop."""
    return lambda value: start + (stop - start) * (value - low) / (high - low)


def end_labels(labels: list[tuple[float, str, int]], x: float) -> list[svg.Element]:
    """The curves' names at their ends, moved apart to avoid overlap."""
    parts, lowest = list[svg.Element](), -math.inf
    for y, name, number in sorted(labels):
        lowest = max(y + 4, lowest + 15)
        label = text(x, lowest, name)
        label.style = f"fill: var(--c{number % COLOURS})"
        parts.append(label)
    return parts


def heading(title: str, below: str) -> list[svg.Element]:
    return [text(MARGIN, 28, title, "title"), text(MARGIN, 46, below, "soft")]


def text(x: float, y: float, content: str, *kinds: str, anchor: str = "start") -> svg.Text:
    place = {"text-anchor": anchor}
    return svg.Text(x=round(x, 1), y=round(y, 1), text=escape(content), class_=list(kinds) or None, extra=place)


def tooltip(content: str) -> svg.Title:
    return svg.Title(text=escape(content))


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> svg.Line:
    return svg.Line(x1=round(x1, 1), y1=round(y1, 1), x2=round(x2, 1), y2=round(y2, 1), class_=[kind])


def box(x: float, y: float, width: float, height: float, kind: str) -> svg.Rect:
    return svg.Rect(
        x=round(x, 1), y=round(y, 1), width=round(width, 1), height=height, rx=min(4, width / 2), class_=[kind]
    )


def circle(x: float, y: float, r: float, colour: int, said: str) -> svg.Circle:
    style = f"fill: var(--c{colour % COLOURS})"
    return svg.Circle(cx=round(x, 1), cy=round(y, 1), r=r, style=style, elements=[tooltip(said)])


def whole(title: str, width: float, height: float, elements: Sequence[svg.Element]) -> str:
    page = svg.Rect(x=0, y=0, width=round(width), height=round(height), rx=8, class_=["page"])
    drawing = svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, round(width), round(height)),
        width=round(width),
        height=round(height),
        extra={"role": "img", "aria-label": escape(title)},
        elements=[tooltip(title), svg.Style(text=style()), page, *elements],
    )
    return drawing.as_str() + "\n"
