"""The owners with their workers, and the rounds."""

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role

_MOST_ROWS = 100


def _owners(visit: Visit) -> Response:
    rest = visit.rest
    page = rest.owners().page(visit.after)
    state = {
        each.domain: each.state.value for each in rest.experts() if each.state != "withdrawn" and each.fitted is None
    }
    newest = list(rest.rounds())[: -_MOST_ROWS - 1 : -1]
    workers = {each.domain: each for each in rest.progress()}
    return visit.show("owners.html", owners=page.items, further=page.next, rounds=newest, state=state, workers=workers)


PAGES = {"/owners": Page(_owners, "Owners and rounds", (Role.OPERATOR,))}
