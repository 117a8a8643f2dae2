"""The anchor: the seed as one more expert of versions under its body."""

from fastapi import APIRouter

from moerge_coordinator.domain import anchors
from moerge_coordinator.rest.auth import Operator, Route
from moerge_coordinator.rest.state import Coordinator
from moerge_proto.anchors import NewAnchor
from moerge_proto.workflows import Workflow

router = APIRouter(prefix="/anchor", tags=["anchor"], route_class=Route)


@router.put("", status_code=202)
def add_anchor(state: Coordinator, caller: Operator, new: NewAnchor) -> Workflow:
    """Starts a workflow that makes the seed the expert `general` of later versions; its result is a contribution.

    Needs the seed's body as the current one. Another text replaces the former one. Idempotent.
    """
    with state.database.reading() as session:
        body = anchors.seed_of(session).digest
    return state.workflows.start_anchor(body, new)


@router.delete("", status_code=204)
def remove_anchor(state: Coordinator, caller: Operator) -> None:
    """Withdraws the anchor's contributions: later versions have no anchor, present ones stay. Idempotent."""
    with state.database.transaction("remove anchor") as session:
        anchors.remove(session)
