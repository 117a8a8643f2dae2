"""The trunks, and the versions of the current one."""

import asyncio

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.history import TrunkHistory
from moerge_proto.owners import Role
from moerge_proto.trunks import Trunk

_MOST_VERSIONS = 25


async def _trunks(visit: Visit) -> Response:
    page, domains, history = await asyncio.gather(
        visit.rest.page(Trunk, "/v1/trunks", {"after": visit.after}),
        visit.domains(),
        visit.rest.find(TrunkHistory, "/v1/trunks/current/history"),
    )
    return visit.show(
        "trunks.html",
        trunks=list(reversed(page.items)),
        further=page.next,
        domains=domains,
        history=history,
        versions=list(reversed(history.versions))[:_MOST_VERSIONS] if history else [],
    )


PAGES = {"/trunks": Page(_trunks, "Trunks", (Role.OPERATOR, Role.OWNER))}
