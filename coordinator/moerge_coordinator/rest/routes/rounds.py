"""Rounds."""

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from moerge_coordinator.domain import rounds
from moerge_coordinator.rest.auth import Operator, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.tables import RoundRow
from moerge_proto.digests import Name
from moerge_proto.messages import Page
from moerge_proto.rounds import NewRound, Round, RoundChange

router = APIRouter(prefix="/rounds", tags=["rounds"], route_class=Route)
RoundName = Annotated[Name, Path()]


@router.post("", status_code=201)
def open_round(state: Coordinator, caller: Operator, new: NewRound) -> Round:
    """Opens a round, which asks domains for contributions. Idempotent."""
    with state.database.transaction("open round") as session:
        return rounds.open_round(session, new)


@router.patch("/{name}")
def change_round(state: Coordinator, caller: Operator, name: RoundName, change: RoundChange) -> Round:
    """Changes a round's deadline or its minimum."""
    with state.database.transaction("change round") as session:
        return rounds.change(session, name, change)


@router.get("")
def list_rounds(state: Coordinator, caller: OperatorOrOwner, after: After = 0) -> Page[Round]:
    """Lists rounds, with their contributors; for an owner, only rounds with its domains."""
    with state.database.reading() as session:
        result = page(session, select(RoundRow), RoundRow.number, after, lambda row: rounds.view(session, row))
    if caller.owner is None:
        return result
    own = (rounds.own_part(item, caller.domains) for item in result.items)
    return Page(items=[item for item in own if item is not None], next=result.next)


@router.get("/{name}")
def show_round(state: Coordinator, caller: Operator, name: RoundName) -> Round:
    """One round, with the contributed and missing domains."""
    with state.database.reading() as session:
        return rounds.view(session, rounds.find(session, name))
