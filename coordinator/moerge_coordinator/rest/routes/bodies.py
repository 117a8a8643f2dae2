"""Bodies of registered seeds."""

from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import bodies, contributors
from moerge_coordinator.rest.auth import Operator, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, Newest, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import BodyRow
from moerge_proto.bodies import Body, Contributors
from moerge_proto.messages import Page

router = APIRouter(prefix="/bodies", tags=["bodies"], route_class=Route)
BodyName = Annotated[str, PathParameter(pattern="^([0-9a-f]{64}|current)$")]


@router.get("")
def list_bodies(state: Coordinator, caller: OperatorOrOwner, after: After = 0, newest: Newest = False) -> Page[Body]:
    """Lists bodies."""
    with state.database.reading() as session:
        return page(session, select(BodyRow), BodyRow.number, after, lambda row: message(Body, row), newest=newest)


@router.get("/{digest}")
def show_body(state: Coordinator, caller: OperatorOrOwner, digest: BodyName) -> Body:
    """One body, by digest or as `current`."""
    with state.database.reading() as session:
        return message(Body, _named(session, digest))


def _named(session: Session, name: str) -> BodyRow:
    return bodies.find(session, None if name == "current" else name)


@router.get("/{digest}/contributors")
def show_contributors(state: Coordinator, caller: Operator, digest: BodyName) -> Contributors:
    """The contributed and missing domains under a body."""
    with state.database.reading() as session:
        return contributors.of_body(session, _named(session, digest))
