"""One alias and its moves."""

import asyncio

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.versions import Alias, AliasMove

_MOST_ROWS = 100


async def _alias(visit: Visit) -> Response:
    name = visit.path["name"]
    found, history = await asyncio.gather(
        visit.rest.find(Alias, f"/v1/aliases/{name}"), visit.rest.all(AliasMove, f"/v1/aliases/{name}/history")
    )
    return visit.show("alias.html", name=name, alias=found, moves=list(reversed(history))[:_MOST_ROWS])


PAGES = {"/aliases/{name}": Page(_alias)}
