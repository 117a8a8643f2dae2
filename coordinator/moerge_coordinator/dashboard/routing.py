"""The page that shows how a version routes a text."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from starlette.responses import Response

from moerge_coordinator.dashboard import charts
from moerge_coordinator.dashboard.rest import RestError
from moerge_coordinator.dashboard.session import form
from moerge_coordinator.dashboard.visit import Visit
from moerge_proto.routing import MAX_CHARACTERS, RoutedText, TextToRoute
from moerge_proto.versions import Alias, Version

ALL = "all"
_POINTS = 200  # of a curve
_MOST_ROWS = 300


@dataclass(frozen=True)
class Run:
    """Pieces of the text that follow each other and go to one expert."""

    text: str
    expert: int


async def route(visit: Visit) -> Response:
    """Asks for a text and a version; sent, shows where each token goes."""
    listed = await visit.rest.page(Version, "/v1/versions", {"newest": True})
    served = [each.number for each in listed.items if each.retired is None and each.withheld is None]
    champion = await visit.rest.find(Alias, "/v1/aliases/champion")
    number = visit.request.query_params.get("version") or str(
        champion.version if champion else served[0] if served else ""
    )
    content: dict[str, Any] = {"served": served, "number": number, "text": "", "layer": ALL, "routed": None}
    content |= {"problem": None, "most": MAX_CHARACTERS}
    if visit.request.method != "POST":
        return visit.show("route.html", **content)
    fields = await form(visit.request)
    text, layer = fields.get("text", "").replace("\r\n", "\n"), fields.get("layer", ALL)
    content |= {"number": fields.get("version", ""), "text": text, "layer": layer}
    try:
        asked = TextToRoute.model_construct(text=text)
        path = f"/v1/versions/{int(content['number'] or 0)}/route"
        routed = RoutedText.model_validate_json(await visit.rest.send("POST", path, asked))
    except (RestError, ValueError) as error:
        problem = error.problem if isinstance(error, RestError) else None
        status = 422 if problem is None else problem.status
        return visit.show("route.html", status, **{**content, "problem": problem or "no such version"})
    return visit.show("route.html", **content | _shown(routed, layer))


def _shown(routed: RoutedText, layer: str) -> dict[str, Any]:
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
    """Softmax of the scores along the text, averaged over the layers, and over neighbours where they are many."""
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
