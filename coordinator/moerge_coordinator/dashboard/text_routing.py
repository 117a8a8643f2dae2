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
from moerge_coordinator.dashboard.site import Visit
from moerge_proto.problems import Problem, ProblemType
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
    if visit.request.method != "POST":
        return _page(visit, await _usual(visit))
    fields = await form(visit.request)
    number, layer = fields.get("version", ""), fields.get("layer", ALL)
    text = fields.get("text", "").replace("\r\n", "\n")
    try:
        if not number.isdecimal():
            what = f"expected a version's number, found {number!r}"
            raise RestError(Problem.of(ProblemType.INVALID_REQUEST, what, field="version"))
        asked = TextToRoute.model_construct(text=text)  # too long a text comes back to the page, with the reason
        answer = await visit.rest.send("POST", f"/v1/versions/{number}/route", asked)
    except RestError as error:
        return _page(visit, number, error.problem.status, text=text, layer=layer, problem=error.problem)
    return _page(visit, number, text=text, layer=layer, **_shown(RoutedText.model_validate_json(answer), layer))


def _page(visit: Visit, number: str, status: int = 200, **content: Any) -> Response:
    blank = {"text": "", "layer": ALL, "routed": None, "problem": None, "most": MAX_CHARACTERS}
    return visit.show("route.html", status, **{**blank, "number": number, **content})


async def _usual(visit: Visit) -> str:
    """The champion, or else the newest version that is served."""
    champion = await visit.rest.find(Alias, "/v1/aliases/champion")
    if champion is not None:
        return str(champion.version)
    listed = await visit.rest.page(Version, "/v1/versions", {"newest": True})
    return next((str(each.number) for each in listed.items if not (each.retired or each.withheld)), "")


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
