"""The trunks, and the versions of the current one."""

from starlette.responses import Response

from moerge.client.http import optional
from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role

_MOST_VERSIONS = 25


def _trunks(visit: Visit) -> Response:
    page = visit.rest.trunks().page(visit.after)
    history = optional(visit.rest.trunk_history, "current")
    return visit.show(
        "trunks.html",
        trunks=list(reversed(page.items)),
        further=page.next,
        domains=visit.domains(),
        history=history,
        versions=list(reversed(history.versions))[:_MOST_VERSIONS] if history else [],
    )


PAGES = {"/trunks": Page(_trunks, "Trunks", (Role.OPERATOR, Role.OWNER))}
