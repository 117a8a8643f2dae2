"""The public log of bodies, heads and versions."""

from fastapi import APIRouter
from sqlalchemy import select

from moerge_coordinator.domain import public_log, version_keys
from moerge_coordinator.rest.auth import Anyone, Route
from moerge_coordinator.rest.lists import After, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import LogRow
from moerge_proto.messages import Page
from moerge_proto.public_log import LogEntry, LogHead

router = APIRouter(prefix="/log", tags=["versions"], route_class=Route)


@router.get("")
def list_log(state: Coordinator, caller: Anyone, after: After = 0) -> Page[LogEntry]:
    """Lists the publications of bodies, heads and versions, each with the digest of the entry before.

    Entries are added in the transaction that makes a publication visible, and never changed.
    """
    with state.database.reading() as session:
        return page(session, select(LogRow), LogRow.number, after, lambda row: message(LogEntry, row))


@router.get("/head")
def show_log_head(state: Coordinator, caller: Anyone) -> LogHead:
    """The number of the log's entries and the digest of the last one, signed if the coordinator has the version key."""
    with state.database.reading() as session:
        head, key = public_log.head(session), version_keys.signing_key(session, state.settings.home)
    return head if key is None else head.signed(key)
