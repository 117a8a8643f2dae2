"""How far owners' workers are, of which the last word is kept."""

from fastapi import APIRouter, Request
from sqlalchemy import select

from moerge_coordinator.rest.auth import DomainOwner, OperatorOrOwner, own_name, require_own_domain
from moerge_coordinator.rest.lists import After, visible_page
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage import tables
from moerge_coordinator.storage.database import transaction
from moerge_coordinator.storage.tables import ProgressRow
from moerge_proto.messages import Page
from moerge_proto.progress import DomainProgress, Progress

router = APIRouter(prefix="/progress", tags=["operation"])


@router.put("")
def put_progress(request: Request, caller: DomainOwner, new: Progress) -> DomainProgress:
    """Tells how far the worker of a domain is, in the place of what was told before. Role: owner.

    It isn't in the audit log.
    """
    require_own_domain(caller, new.domain)
    with transaction(request.app.state.engine) as session:
        row = session.scalar(select(ProgressRow).where(ProgressRow.domain == new.domain))
        if row is None:
            row = ProgressRow(domain=new.domain, owner=own_name(caller))
            session.add(row)
        for name, value in new.model_dump(mode="json", exclude={"domain"}).items():
            setattr(row, name, value)
        row.heard = tables.now()
        session.flush()
        return views.progress(row)


@router.get("")
def list_progress(request: Request, caller: OperatorOrOwner, after: After = 0) -> Page[DomainProgress]:
    """Lists how far the workers are that tell it; an owner sees its own. Role: operator or owner."""
    return visible_page(request, caller, ProgressRow, after, views.progress)
