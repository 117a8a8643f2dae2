"""A text, and the expert of each of its tokens."""

from typing import Any

from starlette.responses import Response

from moerge_coordinator.dashboard.forms import invalid
from moerge_coordinator.dashboard.rest import RestError
from moerge_coordinator.dashboard.session import read_form
from moerge_coordinator.dashboard.site import Page, Visit
from moerge_coordinator.dashboard.text_routing import routing
from moerge_proto.owners import Role
from moerge_proto.routing import MAX_CHARACTERS, RoutedText, TextToRoute
from moerge_proto.versions import CHAMPION, Alias, Version

_ALL = "all"


async def _text(visit: Visit) -> Response:
    if visit.request.method != "POST":
        return _show(visit, await _usual(visit))
    given = await read_form(visit.request)
    number, layer = given.get("version", ""), given.get("layer", _ALL)
    text = given.get("text", "").replace("\r\n", "\n")
    try:
        if not number.isdecimal():
            raise invalid("version", f"expected a version's number, found {number!r}")
        asked = TextToRoute.model_construct(text=text)  # unchecked: REST refuses an overlong text with its reason
        answer = await visit.rest.send("POST", f"/v1/versions/{number}/route", asked)
    except RestError as error:
        return _show(visit, number, error.problem.status, text=text, layer=layer, problem=error.problem)
    return _show(visit, number, text=text, layer=layer, **routing(RoutedText.model_validate_json(answer), layer))


def _show(visit: Visit, number: str, status: int = 200, **content: Any) -> Response:
    blank = {
        "on": visit.site.routes_texts,
        "text": "",
        "layer": _ALL,
        "routed": None,
        "problem": None,
        "most": MAX_CHARACTERS,
    }
    return visit.show("route.html", status, **{**blank, "number": number, **content})


async def _usual(visit: Visit) -> str:
    """The champion's number, or otherwise the newest served version's."""
    champion = await visit.rest.find(Alias, f"/v1/aliases/{CHAMPION}")
    if champion is not None:
        return str(champion.version)
    listed = await visit.rest.page(Version, "/v1/versions", {"newest": True})
    return next((str(each.number) for each in listed.items if not (each.retired or each.withheld)), "")


PAGES = {"/route": Page(_text, "Route a text", (Role.OPERATOR, Role.READER), ("GET", "POST"))}
