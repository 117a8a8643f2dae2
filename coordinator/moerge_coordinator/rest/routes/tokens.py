"""Tokens."""

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from moerge_coordinator.domain import tokens
from moerge_coordinator.rest.auth import Operator, Route
from moerge_coordinator.rest.lists import LARGEST, After, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import TokenRow
from moerge_proto.messages import Page
from moerge_proto.owners import NewToken, RotateToken, Token, TokenEntry

router = APIRouter(prefix="/tokens", tags=["owners"], route_class=Route)
Id = Annotated[int, Path(alias="id", ge=1, le=LARGEST)]


@router.post("", status_code=201)
def add_token(state: Coordinator, caller: Operator, new: NewToken) -> Token:
    """Makes a token; only this answer contains its secret."""
    with state.database.transaction("make token") as session:
        return tokens.make_token(session, new)


@router.get("")
def list_tokens(state: Coordinator, caller: Operator, after: After = 0) -> Page[TokenEntry]:
    """Lists tokens, including ended ones, without their secrets."""
    with state.database.reading() as session:
        return page(session, select(TokenRow), TokenRow.id, after, lambda row: message(TokenEntry, row))


@router.delete("/{id}")
def revoke_token(state: Coordinator, caller: Operator, id_: Id) -> TokenEntry:
    """Revokes a token immediately, except the last valid operator token. Idempotent."""
    with state.database.transaction("revoke token") as session:
        return tokens.revoke_token(session, id_)


@router.post("/{id}/rotate", status_code=201)
def rotate_token(state: Coordinator, caller: Operator, id_: Id, asked: RotateToken) -> Token:
    """Replaces a token with a new one; the old one ends immediately or after an overlap.

    The role, owner, note and original duration stay.
    """
    with state.database.transaction("rotate token") as session:
        return tokens.rotate_token(session, id_, asked)
