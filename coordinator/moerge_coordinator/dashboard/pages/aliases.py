"""One alias and its moves."""

from starlette.responses import Response

from moerge.client.http import optional
from moerge_coordinator.dashboard.site import Page, Visit

_MOST_ROWS = 100


def _alias(visit: Visit) -> Response:
    name = visit.path["name"]
    alias = optional(visit.rest.alias, name)
    moves = list(visit.rest.alias_history(name))[: -_MOST_ROWS - 1 : -1]
    return visit.show("alias.html", name=name, alias=alias, moves=moves)


PAGES = {"/aliases/{name}": Page(_alias)}
