"""The audit log."""

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import select

from moerge_coordinator.rest.auth import Operator, Route
from moerge_coordinator.rest.lists import After, Flag, Newest, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import AuditRow
from moerge_proto.audit import AuditEntry
from moerge_proto.digests import Name
from moerge_proto.messages import Page

_PATH = r"^[\x20-\x7e]{0,200}$"
router = APIRouter(prefix="/audit", tags=["operation"], route_class=Route)


@router.get("")
def list_audit(
    state: Coordinator,
    caller: Operator,
    after: After = 0,
    newest: Newest = False,
    owner: Annotated[Name | None, Query(description="Only this owner's calls.")] = None,
    path: Annotated[str | None, Query(description="Only paths with this prefix.", pattern=_PATH)] = None,
    failed: Annotated[Flag, Query(description="Only refused and failed calls.")] = False,
) -> Page[AuditEntry]:
    """Lists all write calls, allowed and refused, except chunks of uploads and progress."""
    query = select(AuditRow)
    if owner is not None:
        query = query.where(AuditRow.owner == owner)
    if path is not None:
        query = query.where(AuditRow.path.startswith(path, autoescape=True))
    if failed:
        query = query.where(AuditRow.status >= 400)
    with state.database.reading() as session:
        return page(session, query, AuditRow.number, after, lambda row: message(AuditEntry, row), newest=newest)
