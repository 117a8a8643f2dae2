"""The audit log."""

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.audit import AuditEntry
from moerge_proto.owners import Role


async def _audit(visit: Visit) -> Response:
    asked = visit.request.query_params
    given = {name: asked.get(name, "") for name in ("owner", "path", "failed")}
    page = await visit.rest.page(AuditEntry, "/v1/audit", {"after": visit.after, "newest": True, **given})
    return visit.show("audit.html", entries=page.items, further=page.next, given=given)


PAGES = {"/audit": Page(_audit, "Audit log", (Role.OPERATOR,))}
