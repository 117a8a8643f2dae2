"""The dashboard's charts, as wide as their container, so that text keeps its size; margins are in style.css.

Every chart has a title, and a table on its page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import svg
from markupsafe import Markup, escape

from moerge.charts import CHARACTER, Curve, box, colour, line_chart, scale, text, tooltip
from moerge_coordinator.dashboard.formatting import step

_HEIGHT, _TOP, _BOTTOM = 240, 12, 26
_TICKS = 4
_ROOMS = 210, 1060
_ROW = 18
_LABEL = 16  # characters of a line's name
_MARKS = 60  # of the main line
_MARGINS = (48, 72, 96, 120, 144, 168)  # of row labels: the classes m0, m1, ...


def _whole(title: str, height: float, elements: Sequence[svg.Element], *kinds: str) -> Markup:
    """The picture; `elements` must have escaped their texts, as those of `moerge.charts` do."""
    picture = svg.SVG(
        height=round(height),
        class_=["chart", *kinds],
        extra={"role": "img", "aria-label": str(escape(title))},
        elements=[tooltip(title), *elements],
    )
    return Markup(picture.as_str())  # noqa: S704  # escaped above


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
    drawn = [
        Curve(
            _short(name, _LABEL),
            values[name],
            "main" if name in (main, dots) else colour(index),
            joined=name != dots,
            marked=name == main and len(across) <= _MARKS,
        )
        for index, name in enumerate(names)
    ]
    known = [value for line in values.values() for value in line if value is not None]
    heights, shown = scale(known, _TICKS, step=1 if powers else 0), "1e{:g}" if powers else "{:g}"
    parts = line_chart(drawn, across, heights, _HEIGHT - _TOP - _BOTTOM, _ROOMS, shown=shown.format)
    plot = svg.SVG(y=_TOP, overflow="visible", elements=parts)
    return Curves(_whole(title, _HEIGHT, [plot], "curves"), names, values, across)


def heat(title: str, rows: Sequence[str], values: Sequence[Sequence[float]], *, cosines: bool = False) -> Markup:
    """Cells of rows x layers, each with its value on hover: shares from 0 to 1, or cosines from -1 to 1."""
    low = -1 if cosines else 0
    columns = len(values[0]) if values else 0
    wanted = max(len(name) for name in rows) * CHARACTER + 10
    margin = next((index for index, width in enumerate(_MARGINS) if width >= wanted), len(_MARGINS) - 1)
    longest = int((_MARGINS[margin] - 10) / CHARACTER)
    width = 100 / max(columns, 1)
    parts: list[svg.Element] = []
    for row, (name, line) in enumerate(zip(rows, values, strict=True)):
        parts.append(text(0, row * _ROW + 13, _short(name, longest), "tick", anchor="end", dx=-8))
        for column, value in enumerate(line):
            hover = f"{name}, layer {column}: " + (f"{value:.3g}" if cosines else f"{100 * value:.1f} %")
            parts.append(box(column * width, row * _ROW, width, _ROW - 1, "cell", step(value, low, 1), said=hover))
    bottom = len(rows) * _ROW
    for column in {0, columns - 1}:
        parts.append(text((column + 0.5) * width, bottom + 12, str(column), "tick", anchor="middle"))
    return _whole(title, bottom + 18, parts, "rows", f"m{margin}")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
