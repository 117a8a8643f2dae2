"""The owners with their workers, and the rounds."""

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role

_MOST_ROWS = 100


def _owners(visit: Visit) -> Response:
    rest = visit.rest
    page = rest.owners().page(visit.after)
    state = {
        expert.domain: expert.state.value
        for expert in rest.experts()
        if expert.state != "withdrawn" and expert.fitted is None
    }
    newest = list(rest.rounds())[: -_MOST_ROWS - 1 : -1]
    workers = {item.domain: item for item in rest.progress()}
    return visit.show("owners.html", owners=page.items, further=page.next, rounds=newest, state=state, workers=workers)


PAGES = {"/owners": Page(_owners, "Owners and rounds", (Role.OPERATOR,))}
