"""The audit log: one row for each write call, written before its answer is sent.

Calls without a valid token have no row: strangers could fill the disk and delay the operator's writes.
"""

from fastapi import Request

from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import AuditRow
from moerge_proto.owners import Identity

_MUTATING = {"POST", "PUT", "PATCH", "DELETE"}
_UNCOUNTED = {
    ("PUT", "/v1/uploads/{upload}/chunks/{sha256}"),  # thousands per file; the commit is logged
    ("PUT", "/v1/progress"),  # every ten seconds, and only the last counts
}
_LONGEST = 2000


def is_audited(method: str, route: str | None, status: int) -> bool:
    """Tell whether a call is logged: it may change data, has a token and a known path, and is no chunk or progress."""
    return status != 401 and method in _MUTATING and route is not None and (method, route) not in _UNCOUNTED


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
                method=request.method,
                path=path[:_LONGEST],
                status=status,
                problem=getattr(request.state, "problem", None),
            )
        )
