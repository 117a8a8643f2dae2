"""The weights along a text as SVG, or as a self-contained HTML page with the text."""

from collections.abc import Sequence
from html import escape

import svg
from torch import Tensor

from moerge.charts import CHARACTER, MARGIN, Curve, box, colour, line_chart, plot, round_up, scale, style, text, whole
from moerge_lab.routing.weights import Along

_WIDE, _HIGH, _APART = 860, 200, 84
_POINTS = 860  # of a curve at most; a longer text is averaged
_STRIP = 10
_PAGE_STYLE = """
body { margin: 24px; background: var(--page); color: var(--ink); }
h1 { font-size: 18px; font-weight: 600; }
.tokens { font: 15px/1.9 ui-monospace, Menlo, Consolas, monospace; max-width: 940px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.tokens span { border-bottom: 2px solid var(--own); background: color-mix(in srgb, var(--own) 18%, transparent); }
svg { max-width: 100%; height: auto; }
"""


def curves(result: Along, title: str) -> str:
    """An SVG with a diagram for each part: a curve for each expert over the tokens, above a strip of first experts."""
    left, top, size = MARGIN + 34, 84, int(round_up(max(len(result.pieces) / _POINTS, 1)))
    below = "weight of each expert in percent, by token" + (f", means of {size} tokens" if size > 1 else "")
    parts = list[svg.Element]()
    for name, weights in result.parts.items():
        diagram = [text(0, -12, name, "group", dx=MARGIN - left), *_diagram(result, weights, size)]
        parts.append(plot(left, top, _WIDE, diagram))
        top += _HIGH + _APART
    room = CHARACTER * (max(map(len, result.members)) + len(" 100 %"))
    return whole(title, below, left + _WIDE + room + MARGIN, top - 30, parts)


def page(result: Along, title: str) -> str:
    """An HTML page: the text, each token in the colour of its first expert, and the curves."""
    mean = result.mean
    firsts, spans = mean.argmax(-1).tolist(), list[str]()
    for piece, first, weights in zip(result.pieces, firsts, mean.tolist(), strict=True):
        weights_of_piece = escape(", ".join(shares(result.members, weights)))
        spans.append(f'<span class="{colour(first)}" title="{weights_of_piece}">{escape(piece)}</span>')
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width"/>
<title>{escape(title)}</title>
<style>{style(":root")}{_PAGE_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>Each token has the colour of the expert with the largest weight; hover over it for all weights.</p>
<p class="tokens">{"".join(spans)}</p>
{curves(result, "Weights along the text")}</body>
</html>
"""


def shares(members: Sequence[str], weights: Sequence[float]) -> list[str]:
    return [f"{name} {100 * weight:.0f} %" for name, weight in zip(members, weights, strict=True)]


def _diagram(result: Along, weights: Tensor, size: int) -> list[svg.Element]:
    groups = [group.mean(0).tolist() for group in (100 * weights).split(size)]
    names = shares(result.members, weights.mean(0).tolist())
    lines = [Curve(name, [values[number] for values in groups], colour(number)) for number, name in enumerate(names)]
    starts = [size * group for group in range(len(groups))]
    heights = scale([0, max(map(max, groups))], 8, span=1)
    parts = line_chart(lines, [*map(str, starts)], heights, _HIGH, (_WIDE, _WIDE), below=18 + _STRIP)
    for group, (start, values) in enumerate(zip(starts, groups, strict=True)):
        first, piece = values.index(max(values)), "".join(result.pieces[start : start + size])
        label = f"{piece}: {result.members[first]} {values[first]:.0f} %"
        x, width = 100 * group / len(groups), 100 / len(groups)
        parts.append(box(x, _HIGH + 6, width, _STRIP, "cell", colour(first), said=label))
    return parts
