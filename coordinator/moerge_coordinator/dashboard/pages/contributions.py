"""The contributions."""

from typing import Any

from starlette.responses import Response

from moerge.statistics.kinds import CONTRIBUTIONS, ROUTER
from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role


def _contributions(visit: Visit) -> Response:
    kind = CONTRIBUTIONS.get(visit.query.get("kind", ""), ROUTER)
    page = visit.rest.contributions(kind.name, newest=True).page(visit.after)
    current = visit.rest.current_trunk()
    trunk = current.digest if current else None
    shown: dict[str, Any] = {"contributions": page.items, "further": page.next, "trunk": trunk}
    return visit.show("contributions.html", **shown, kind=kind, kinds=CONTRIBUTIONS.values())


PAGES = {"/contributions": Page(_contributions, "Contributions", (Role.OPERATOR, Role.OWNER))}
