"""The coordinator's settings."""

import json

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role


async def _settings(visit: Visit) -> Response:
    found = json.loads(await visit.rest.send("GET", "/v1/settings"))
    return visit.show("settings.html", settings=found)


PAGES = {"/settings": Page(_settings, "Settings", (Role.OPERATOR,))}
