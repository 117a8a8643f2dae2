"""The coordinator's settings."""

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role


def _settings(visit: Visit) -> Response:
    return visit.show("settings.html", settings=visit.rest.settings())


PAGES = {"/settings": Page(_settings, "Settings", (Role.OPERATOR,))}
