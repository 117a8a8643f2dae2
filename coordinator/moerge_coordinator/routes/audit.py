"""The audit log."""

from fastapi import APIRouter, Request
from sqlalchemy import select

from moerge_coordinator import audit
from moerge_coordinator.auth import Operator
from moerge_coordinator.database import transaction
from moerge_coordinator.routes.pages import After, page
from moerge_coordinator.tables import AuditRow
from moerge_proto.audit import AuditEntry
from moerge_proto.messages import Page

router = APIRouter(prefix="/audit", tags=["operation"])


@router.get("")
def list_audit(request: Request, caller: Operator, after: After = 0) -> Page[AuditEntry]:
    """Lists every call that might have changed something, allowed or refused. Role: operator.

    Single chunks of uploads, and progress, are not in it.
    """
    with transaction(request.app.state.engine) as session:
        return page(session, select(AuditRow), AuditRow.number, after, audit.entry)
