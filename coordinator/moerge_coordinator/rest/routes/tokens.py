"""Tokens: made, listed, rotated, revoked."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from sqlalchemy import select

from moerge_coordinator.domain import tokens
from moerge_coordinator.rest.auth import Operator
from moerge_coordinator.rest.lists import LARGEST, After, page
from moerge_coordinator.storage.database import transaction
from moerge_coordinator.storage.tables import TokenRow
from moerge_proto.messages import Page
from moerge_proto.owners import NewToken, RotateToken, Token, TokenEntry

router = APIRouter(prefix="/tokens", tags=["owners"])
Id = Annotated[int, Path(alias="id", ge=1, le=LARGEST)]


@router.post("", status_code=201)
def add_token(request: Request, caller: Operator, new: NewToken) -> Token:
    """Makes a token; its secret is in this answer and nowhere else. Role: operator."""
    return tokens.make_token(request.app.state.engine, new)


@router.get("")
def list_tokens(request: Request, caller: Operator, after: After = 0) -> Page[TokenEntry]:
    """Lists tokens, ended ones too, without their secrets. Role: operator."""
    with transaction(request.app.state.engine) as session:
        return page(session, select(TokenRow), TokenRow.id, after, tokens.entry)


@router.delete("/{id}")
def revoke_token(request: Request, caller: Operator, id_: Id) -> TokenEntry:
    """Ends a token at once, but never the last valid operator token. The same again changes nothing. Role: operator."""
    return tokens.revoke_token(request.app.state.engine, id_)


@router.post("/{id}/rotate", status_code=201)
def rotate_token(request: Request, caller: Operator, id_: Id, asked: RotateToken) -> Token:
    """Makes a token in the place of another, which ends at once or after an overlap.

    Role, owner and note stay; it is valid for as long as the other one was at first. Role: operator.
    """
    return tokens.rotate_token(request.app.state.engine, id_, asked)
