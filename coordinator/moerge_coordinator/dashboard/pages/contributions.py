"""The contributions."""

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role
from moerge_proto.statistics_file import Kind


def _contributions(visit: Visit) -> Response:
    kind: Kind = "trunk" if visit.query.get("kind") == "trunk" else "router"
    page = visit.rest.contributions(kind, newest=True).page(visit.after)
    current = visit.rest.current_trunk()
    trunk = current.digest if current else None
    return visit.show("contributions.html", contributions=page.items, further=page.next, trunk=trunk, kind=kind)


PAGES = {"/contributions": Page(_contributions, "Contributions", (Role.OPERATOR, Role.OWNER))}
