"""Trunks."""

from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import contributors, trunks
from moerge_coordinator.domain.trunk_history import own_part, trunk_history
from moerge_coordinator.problems import existing
from moerge_coordinator.rest.auth import Anyone, Operator, OperatorOrOwner, Route
from moerge_coordinator.rest.content import content
from moerge_coordinator.rest.lists import After, Newest, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import TrunkRow
from moerge_proto.digests import Digest
from moerge_proto.history import TrunkHistory
from moerge_proto.messages import Page
from moerge_proto.owners import Role
from moerge_proto.trunks import Contributors, NewTrunk, Trunk
from moerge_proto.workflows import Workflow

router = APIRouter(prefix="/trunks", tags=["trunks"], route_class=Route)
TrunkName = Annotated[str, PathParameter(pattern="^([0-9a-f]{64}|current)$")]


@router.post("", status_code=202)
def merge(state: Coordinator, caller: Operator, new: NewTrunk) -> Workflow:
    """Merges a trunk, which becomes the current one."""
    with state.database.reading() as session:
        lineage = trunks.lineage_of(session, new)
    return state.workflows.start_trunk(lineage)


@router.get("")
def list_trunks(state: Coordinator, caller: OperatorOrOwner, after: After = 0, newest: Newest = False) -> Page[Trunk]:
    """Lists trunks."""
    with state.database.reading() as session:
        return page(session, select(TrunkRow), TrunkRow.number, after, lambda row: message(Trunk, row), newest=newest)


@router.get("/{digest}")
def show_trunk(state: Coordinator, caller: OperatorOrOwner, digest: TrunkName) -> Trunk:
    """One trunk, by digest or as `current`."""
    with state.database.reading() as session:
        return message(Trunk, _named(session, digest))


def _named(session: Session, name: str) -> TrunkRow:
    return trunks.find(session, None if name == "current" else name)


@router.get("/{digest}/history")
def show_history(state: Coordinator, caller: Anyone, digest: TrunkName) -> TrunkHistory:
    """The evaluated scores of a trunk's versions, and the expected gain of a remerge.

    For an owner, only its own domains' scores, and the averages.
    """
    with state.database.reading() as session:
        history = trunk_history(session, _named(session, digest))
    return own_part(history, caller.domains) if caller.role is Role.OWNER else history


@router.get("/{digest}/contributors")
def show_contributors(state: Coordinator, caller: Operator, digest: TrunkName) -> Contributors:
    """The contributed and missing domains of a trunk."""
    with state.database.reading() as session:
        return contributors.of_trunk(session, _named(session, digest))


@router.get("/{digest}/files/{name}", response_class=FileResponse)
def trunk_content(state: Coordinator, caller: OperatorOrOwner, digest: Digest, name: str) -> Response:
    """A file of a trunk; supports ranges."""
    with state.database.reading() as session:
        files = {file.name: file.sha256 for file in trunks.find(session, digest).files}
    return content(state.blobs, existing(files.get(name), f"file {name!r} in the trunk"), name)
