"""Progress of owners' workers."""

from fastapi import APIRouter

from moerge_coordinator.domain import progress
from moerge_coordinator.domain.owners import own_name, require_own_domain
from moerge_coordinator.rest.auth import DomainOwner, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, page, visible
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import ProgressRow
from moerge_proto.messages import Page
from moerge_proto.progress import DomainProgress, Progress

router = APIRouter(prefix="/progress", tags=["operation"], route_class=Route)


@router.put("")
def put_progress(state: Coordinator, caller: DomainOwner, new: Progress) -> DomainProgress:
    """Reports the progress of a domain's worker; replaces the earlier report. Not in the audit log."""
    require_own_domain(caller, new.domain)
    with state.database.transaction("tell progress") as session:
        return progress.tell(session, own_name(caller), new)


@router.get("")
def list_progress(state: Coordinator, caller: OperatorOrOwner, after: After = 0) -> Page[DomainProgress]:
    """Lists the reported progress of workers; for an owner, only its own."""
    with state.database.reading() as session:
        query = visible(caller, ProgressRow)
        return page(session, query, ProgressRow.number, after, lambda row: message(DomainProgress, row))
