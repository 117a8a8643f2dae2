"""Aliases: movable names for versions, with their history."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from sqlalchemy import select

from moerge_coordinator.domain import aliases
from moerge_coordinator.rest.auth import Anyone, Operator, Route, who
from moerge_coordinator.rest.lists import After, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import AliasMoveRow, AliasRow
from moerge_proto.digests import Name
from moerge_proto.messages import Page
from moerge_proto.versions import Alias, AliasMove, Move, Rollback

router = APIRouter(prefix="/aliases", tags=["aliases"], route_class=Route)
AliasName = Annotated[Name, Path()]


@router.put("/{name}")
def promote(request: Request, state: Coordinator, caller: Operator, name: AliasName, move: Move) -> Alias:
    """Points an alias to a version. Idempotent. The answer's `warnings` name what is lost or can't be compared.

    For `champion`, refused if a score that both versions have is worse: a domain's by more points than the setting
    `promotion_max_fall`, a task's, measured alike, by more than `promotion_max_errors` standard errors of the
    difference. `override` promotes nevertheless; the history stores the reason. With the setting
    `promotion_signed`, refused unless the version is signed by a key that isn't revoked.
    """
    with state.database.transaction("promote version") as session:
        return aliases.promote(session, name, move, who(request, caller), state.settings, state.comparisons)


@router.post("/{name}/rollback")
def roll_back(request: Request, state: Coordinator, caller: Operator, name: AliasName, back: Rollback) -> Alias:
    """Reverts the last promotion. `version` is the alias' present version, which makes a repeated call harmless."""
    signed = state.settings.promotion_signed
    with state.database.transaction("roll alias back") as session:
        return aliases.roll_back(session, name, back, who(request, caller), signed=signed)


@router.delete("/{name}", status_code=204)
def remove_alias(request: Request, state: Coordinator, caller: Operator, name: AliasName) -> None:
    """Removes an alias; its history stays. Idempotent."""
    with state.database.transaction("remove alias") as session:
        aliases.remove(session, name, who(request, caller))


@router.get("")
def list_aliases(state: Coordinator, caller: Anyone, after: After = 0) -> Page[Alias]:
    """Lists aliases."""
    with state.database.reading() as session:
        return page(session, select(AliasRow), AliasRow.number, after, lambda row: message(Alias, row))


@router.get("/{name}")
def show_alias(state: Coordinator, caller: Anyone, name: AliasName) -> Alias:
    """One alias."""
    with state.database.reading() as session:
        return message(Alias, aliases.find(session, name))


@router.get("/{name}/history")
def show_history(state: Coordinator, caller: Operator, name: AliasName, after: After = 0) -> Page[AliasMove]:
    """The moves of an alias, each with its author, time and reason."""
    with state.database.reading() as session:
        query = select(AliasMoveRow).where(AliasMoveRow.alias == name)
        return page(session, query, AliasMoveRow.number, after, lambda row: message(AliasMove, row))
