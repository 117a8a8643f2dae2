"""The weights along a text as SVG, or as a self-contained HTML page with the text."""

import math
from collections.abc import Sequence
from html import escape

import svg
from torch import Tensor

from moerge import pictures
from moerge_lab.routing.weights import Along

_WIDE, _HIGH, _APART = 860, 200, 74
_POINTS = 430  # of a curve; a longer text is averaged
_STRIP = 10
_PAGE_STYLE = """
body { margin: 24px; background: var(--page); color: var(--ink); }
h1 { font-size: 18px; font-weight: 600; }
.tokens { font: 15px/1.9 ui-monospace, Menlo, Consolas, monospace; max-width: 940px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.tokens span { border-bottom: 2px solid var(--own); background: color-mix(in srgb, var(--own) 18%, transparent); }
svg { max-width: 100%; height: auto; }
"""


def curves(found: Along, title: str) -> str:
    """An SVG with a diagram for each part: a curve for each expert over the tokens, above a strip of first experts."""
    left, top = float(pictures.MARGIN + 34), 84.0
    right, tokens = left + _WIDE, len(found.pieces)
    size = math.ceil(tokens / _POINTS)
    below = "weight of each expert in percent" + (f", means of {size} tokens" if size > 1 else "")
    parts = [*pictures.heading(title, below), *_legend(found)]
    across = pictures.placer(0, tokens, left, right)
    for name, weights in found.parts.items():
        parts.append(pictures.text(left, top, name, "group"))
        parts += _diagram(found, weights, size, top + 12, left, right)
        top += _HIGH + _APART
    step = pictures.scale([0, max(tokens, 8)])[2][1]
    for number in range(0, tokens + 1, max(int(step), 1)):
        parts.append(pictures.text(across(number), top - 28, str(number), "soft", anchor="middle"))
    parts.append(pictures.text((left + right) / 2, top - 10, "token", "soft", anchor="middle"))
    return pictures.whole(title, right + pictures.MARGIN, top + 8, parts)


def page(found: Along, title: str) -> str:
    """An HTML page: the text, each token in the colour of its first expert, and the curves."""
    mean = found.mean
    firsts, spans = mean.argmax(-1).tolist(), list[str]()
    for piece, first, weights in zip(found.pieces, firsts, mean.tolist(), strict=True):
        told = escape(", ".join(shares(found.members, weights)))
        own = f"--own: var(--c{first % pictures.COLOURS})"
        spans.append(f'<span style="{own}" title="{told}">{escape(piece)}</span>')
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width"/>
<title>{escape(title)}</title>
<style>{pictures.style(":root")}{_PAGE_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>Each token has the colour of the expert with the largest weight; hover over it for all weights.</p>
<p class="tokens">{"".join(spans)}</p>
{curves(found, "Weights along the text")}</body>
</html>
"""


def shares(members: Sequence[str], weights: Sequence[float]) -> list[str]:
    """Each expert's weight in percent."""
    return [f"{name} {100 * weight:.0f} %" for name, weight in zip(members, weights, strict=True)]


def _legend(found: Along) -> list[svg.Element]:
    x, parts = float(pictures.MARGIN), list[svg.Element]()
    for number, said in enumerate(shares(found.members, found.mean.mean(0).tolist())):
        parts += [pictures.circle(x + 4, 58, 4, number, said), pictures.text(x + 13, 62, said, "soft")]
        x += 28 + pictures.CHARACTER * len(said)
    return parts


def _diagram(found: Along, weights: Tensor, size: int, top: float, left: float, right: float) -> list[svg.Element]:
    bottom, tokens = top + _HIGH, len(found.pieces)
    percent = 100 * weights
    groups = percent.split(size)
    means = [(each.mean(0).tolist(), min(size, len(each))) for each in groups]
    low, high, ticks = pictures.scale([0, max(max(values) for values, _ in means)])
    place, across = pictures.placer(low, high, bottom, top), pictures.placer(0, tokens, left, right)
    parts: list[svg.Element] = []
    for tick in ticks:
        parts.append(pictures.line(left, place(tick), right, place(tick), "grid"))
        parts.append(pictures.text(left - 8, place(tick) + 4, f"{tick:g}", "soft", anchor="end"))
    for number in range(len(found.members)):
        points = [
            svg.Point(round(across(group * size + count / 2), 1), round(place(values[number]), 1))
            for group, (values, count) in enumerate(means)
        ]
        colour = f"var(--c{number % pictures.COLOURS})"
        parts.append(svg.Polyline(points=points, class_=["curve"], style=f"stroke: {colour}"))
    for group, (values, count) in enumerate(means):
        first, start = values.index(max(values)), group * size
        said = "".join(found.pieces[start : start + count])
        parts.append(
            svg.Rect(
                x=round(across(start), 2),
                y=bottom + 8,
                width=round(across(start + count) - across(start), 2),
                height=_STRIP,
                style=f"fill: var(--c{first % pictures.COLOURS})",
                extra={"shape-rendering": "crispEdges"},
                elements=[pictures.tooltip(f"{said}: {found.members[first]} {values[first]:.0f} %")],
            )
        )
    return parts
