"""The audit log: one row for each call that may change something, written before its answer leaves.

Calls without a valid token have no row: strangers could fill the disk, and keep the operator's writes waiting.
"""

from fastapi import Request

from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import AuditRow
from moerge_proto.owners import Identity

_MUTATING = {"POST", "PUT", "PATCH", "DELETE"}
_UNCOUNTED = {
    ("PUT", "/v1/uploads/{upload}/chunks/{sha256}"),  # thousands for one file; its commit is in the log
    ("PUT", "/v1/progress"),  # every ten seconds, and only the last counts
}
_LONGEST = 2000


def is_audited(method: str, route: str | None, status: int) -> bool:
    """Whether a call belongs into the log: it may change something, has a token, and isn't a chunk, or progress.

    A path that is no route can't change anything, so scanners don't fill the log.
    """
    return status != 401 and method in _MUTATING and route is not None and (method, route) not in _UNCOUNTED


def record(database: Database, request: Request, path: str, status: int) -> None:
    """Adds the row of a call that is answered with `status`."""
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
