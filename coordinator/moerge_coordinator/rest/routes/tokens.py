"""Tokens: made, listed, rotated, revoked."""

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
    """Makes a token; its secret is in this answer and nowhere else. Role: operator."""
    with state.database.transaction("make token") as session:
        return tokens.make_token(session, new)


@router.get("")
def list_tokens(state: Coordinator, caller: Operator, after: After = 0) -> Page[TokenEntry]:
    """Lists tokens, ended ones too, without their secrets. Role: operator."""
    with state.database.reading() as session:
        return page(session, select(TokenRow), TokenRow.id, after, lambda row: message(TokenEntry, row))


@router.delete("/{id}")
def revoke_token(state: Coordinator, caller: Operator, id_: Id) -> TokenEntry:
    """Ends a token at once, but never the last valid operator token. The same again changes nothing. Role: operator."""
    with state.database.transaction("revoke token") as session:
        return tokens.revoke_token(session, id_)


@router.post("/{id}/rotate", status_code=201)
def rotate_token(state: Coordinator, caller: Operator, id_: Id, asked: RotateToken) -> Token:
    """Makes a token in the place of another, which ends at once or after an overlap.

    Role, owner and note stay; it is valid for as long as the other one was at first. Role: operator.
    """
    with state.database.transaction("rotate token") as session:
        return tokens.rotate_token(session, id_, asked)
