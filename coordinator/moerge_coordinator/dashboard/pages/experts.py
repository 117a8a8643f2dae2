"""The experts."""

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role


def _experts(visit: Visit) -> Response:
    page = visit.rest.experts().page(visit.after)
    return visit.show("experts.html", experts=page.items, further=page.next)


PAGES = {"/experts": Page(_experts, "Experts", (Role.OPERATOR, Role.OWNER))}
