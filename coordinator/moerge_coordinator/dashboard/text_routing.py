"""The experts of a text's tokens: runs of tokens, shares and scores."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from moerge_coordinator.dashboard import charts
from moerge_proto.routing import RoutedText

_POINTS = 200  # of a curve
_MOST_ROWS = 300


@dataclass(frozen=True)
class Run:
    """Successive pieces of the text routed to one expert."""

    text: str
    expert: int


def routing(routed: RoutedText, layer: str) -> dict[str, Any]:
    """The template's values for one layer, given by its number, or for all layers."""
    layers = len(routed.scores)
    chosen = [int(layer)] if layer.isdecimal() and int(layer) < layers else list(range(layers))
    firsts = [
        Counter(routed.experts[each][piece][0] for each in chosen).most_common(1)[0][0]
        for piece in range(len(routed.tokens))
    ]
    pieces = list(zip(routed.tokens, firsts, strict=True))
    runs = [
        Run("".join(text for text, _ in some), expert) for expert, some in groupby(pieces, key=lambda each: each[1])
    ]
    shares = Counter(firsts)
    return {
        "routed": routed,
        "layers": layers,
        "runs": runs,
        "shares": [shares[slot] / len(firsts) for slot in range(len(routed.domains))],
        "curve": _curve(routed, chosen),
        "pieces": pieces[:_MOST_ROWS],
        "more_pieces": max(len(pieces) - _MOST_ROWS, 0),
    }


def _curve(routed: RoutedText, layers: Sequence[int]) -> charts.Curves:
    """Softmax of the scores along the text, averaged over the layers, and over neighbours in a long text."""
    pieces = len(routed.tokens)
    size = math.ceil(pieces / _POINTS)
    lines: dict[str, list[float | None]] = {domain: [] for domain in routed.domains}
    for start in range(0, pieces, size):
        window = range(start, min(start + size, pieces))
        each = [_softmax(routed.scores[layer][piece]) for layer in layers for piece in window]
        for slot, domain in enumerate(routed.domains):
            lines[domain].append(sum(shares[slot] for shares in each) / len(each))
    across = [str(start) for start in range(0, pieces, size)]
    return charts.curves("Router scores along the text, as shares of 1", routed.domains, lines, across)


def _softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    return [power / sum(powers) for power in powers]
