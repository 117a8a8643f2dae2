"""The use of a version's experts, drawn: a map of experts x layers for tokens, and one for router weight."""

from collections.abc import Callable

import svg

from moerge.charts import CHARACTER, MARGIN, box, colour, plot, text, tooltip, whole
from moerge.scoring.usage import Estimate, ExpertUsage, LayerUsage, Usage

_ROW, _TOP, _APART, _ALL = 22, 92, 56, 110
_CELL, _LEAST, _MOST = 28, 360, 900
_NAMED = 24
"""Characters of a domain's name."""
_PALEST = 0.05


def picture(usage: Usage, title: str) -> str:
    """An SVG; cells with larger shares have more colour. Two equal maps, as of one expert per token, are drawn once."""
    layers, rows = len(usage.experts[0].layers), len(usage.experts)
    left = MARGIN + 12 + CHARACTER * min(_NAMED, max(len(expert.domain) for expert in usage.experts))
    wide, high = min(max(_CELL * layers, _LEAST), _MOST), _ROW * rows
    maps: dict[str, Callable[[ExpertUsage | LayerUsage], Estimate]] = {"tokens, by their first expert": _tokens}
    if any(expert.weight != expert.tokens for expert in usage.experts):
        maps["router weight"] = _weight
    parts, top = list[svg.Element](), _TOP
    for name, of in maps.items():
        parts.append(plot(left, top, wide, _map(usage, name, of, MARGIN - left)))
        top += high + _APART
    below = f"share of each expert in percent, by layer; {usage.tokens:,} tokens in {usage.documents:,} documents"
    return whole(title, below, left + wide + _ALL + MARGIN, top - 6, parts)


def _map(
    usage: Usage, name: str, of: Callable[[ExpertUsage | LayerUsage], Estimate], start: float
) -> list[svg.Element]:
    layers, high = len(usage.experts[0].layers), _ROW * len(usage.experts)
    parts: list[svg.Element] = [
        text(0, -10, name, "group", dx=start),
        text(100, -10, "all layers", "tick", anchor="end", dx=_ALL),
    ]
    for row, expert in enumerate(usage.experts):
        y = row * _ROW
        label = text(0, y + 15, _short(expert.domain), anchor="end", dx=-8)
        label.elements = [tooltip(expert.domain)]
        parts += [label, text(100, y + 15, of(expert).percent, anchor="end", dx=_ALL)]
        for layer in expert.layers:
            share, x = of(layer), 100 * layer.layer / layers
            said = f"{expert.domain}, layer {layer.layer}: {share.percent} %"
            cell = box(x, y, 100 / layers, _ROW - 2, "cell", colour(0), said=said)
            cell.fill_opacity = round(_PALEST + (1 - _PALEST) * share.share, 3)
            parts.append(cell)
    for number in sorted({0, layers - 1}):
        parts.append(text(100 * (number + 0.5) / layers, high + 12, f"layer {number}", "tick", anchor="middle"))
    return parts


def _short(name: str) -> str:
    return name if len(name) <= _NAMED else f"{name[: _NAMED - 1]}…"


def _tokens(item: ExpertUsage | LayerUsage) -> Estimate:
    return item.tokens


def _weight(item: ExpertUsage | LayerUsage) -> Estimate:
    return item.weight
