"""The audit log."""

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role


def _audit(visit: Visit) -> Response:
    given = {name: visit.query.get(name, "") for name in ("owner", "path", "failed")}
    owner, path, failed = given["owner"], given["path"], given["failed"] == "true"
    page = visit.rest.audit(newest=True, owner=owner, path=path, failed=failed).page(visit.after)
    return visit.show("audit.html", entries=page.items, further=page.next, given=given)


PAGES = {"/audit": Page(_audit, "Audit log", (Role.OPERATOR,))}
