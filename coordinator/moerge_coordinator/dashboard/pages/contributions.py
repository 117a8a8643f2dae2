"""The contributions."""

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role
from moerge_proto.statistics_file import KINDS
from moerge_proto.trunks import Trunk


async def _contributions(visit: Visit) -> Response:
    kind = visit.request.query_params.get("kind", KINDS[0])
    page = await visit.rest.contributions(visit.after, kind)
    current = await visit.rest.find(Trunk, "/v1/trunks/current")
    trunk = current.digest if current else None
    return visit.show("contributions.html", contributions=page.items, further=page.next, trunk=trunk, kind=kind)


PAGES = {"/contributions": Page(_contributions, "Contributions", (Role.OPERATOR, Role.OWNER))}
