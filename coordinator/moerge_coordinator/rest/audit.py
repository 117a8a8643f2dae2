"""The audit log: one row for each write call, written before its answer is sent.

Calls without a valid token or the right role have no row: they could fill the disk and delay the operator's writes.
"""

from datetime import timedelta

from fastapi import Request
from sqlalchemy import delete

from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import AuditRow
from moerge_proto.owners import Identity

_MUTATING = {"POST", "PUT", "PATCH", "DELETE"}
_UNCOUNTED = {
    ("PUT", "/v1/uploads/{upload}/chunks/{sha256}"),  # thousands per file; the commit is logged
    ("PUT", "/v1/progress"),  # every ten seconds, and only the last counts
}
UNADMITTED = (401, 403)
_LONGEST, _LONGEST_ADDRESS = 200, 64


def is_audited(method: str, route: str | None, status: int) -> bool:
    """Tell whether a call is logged: it may change data, is permitted, has a known path, and is no chunk or report."""
    return status not in UNADMITTED and method in _MUTATING and route is not None and (method, route) not in _UNCOUNTED


def address_of(request: Request) -> str | None:
    """The caller's address; behind one of the settings' `trusted_proxies`, as its header X-Forwarded-For tells it."""
    return request.client.host[:_LONGEST_ADDRESS] if request.client else None


def record(database: Database, request: Request, path: str, status: int) -> None:
    """Adds the row of a call and its status."""
    identity: Identity | None = getattr(request.state, "identity", None)
    with database.transaction("record call") as session:
        session.add(
            AuditRow(
                request=request.state.request_id,
                token=getattr(request.state, "token", None),
                role=identity and identity.role,
                owner=identity and identity.owner,
                name=identity and identity.name,
                address=address_of(request),
                method=request.method,
                path=path[:_LONGEST],
                status=status,
                problem=getattr(request.state, "problem", None),
            )
        )


def forget(database: Database, days: int) -> None:
    """Removes rows older than so many days, at least 30."""
    before = database.clock() - timedelta(days=days)
    with database.transaction("remove old audit rows") as session:
        session.execute(delete(AuditRow).where(AuditRow.created < before))
