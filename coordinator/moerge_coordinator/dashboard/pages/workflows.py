"""The workflows."""

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role


def _workflows(visit: Visit) -> Response:
    page = visit.rest.workflows().page(visit.after)
    return visit.show("workflows.html", workflows=page.items, further=page.next)


PAGES = {"/workflows": Page(_workflows, "Workflows", (Role.OPERATOR,))}
