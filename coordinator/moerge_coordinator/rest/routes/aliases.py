"""Aliases: movable names for versions, with their history."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import Anyone, Operator
from moerge_coordinator.rest.lists import After, page
from moerge_coordinator.rest.routes.versions import find_version, require_served
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage import tables
from moerge_coordinator.storage.database import reading, transaction
from moerge_coordinator.storage.tables import AliasMoveRow, AliasRow, VersionRow
from moerge_proto.digests import Name
from moerge_proto.messages import Page
from moerge_proto.owners import Identity
from moerge_proto.problems import ProblemType
from moerge_proto.versions import CHAMPION, Alias, AliasMove, Move, Rollback

router = APIRouter(prefix="/aliases", tags=["aliases"])
AliasName = Annotated[Name, Path()]


def _find(session: Session, name: str) -> AliasRow:
    row = session.scalar(select(AliasRow).where(AliasRow.name == name))
    if row is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"no alias {name!r}", where="name", todo="see GET /v1/aliases")
    return row


def _moves(session: Session, name: str) -> list[AliasMoveRow]:
    return list(session.scalars(select(AliasMoveRow).where(AliasMoveRow.alias == name).order_by(AliasMoveRow.number)))


@router.put("/{name}")
def promote(request: Request, caller: Operator, name: AliasName, move: Move) -> Alias:
    """Points an alias to a version. Where it points there already, nothing changes. Role: operator.

    With the setting `promotion_max_fall`, `champion` moves only to a version that every domain of it has evaluated, and
    on which none of those that evaluated the present champion scores lower by more points than that.
    """
    most = request.app.state.settings.promotion_max_fall
    with transaction(request.app.state.engine) as session:
        version = find_version(session, move.version, "version")
        require_served(version)
        row = session.scalar(select(AliasRow).where(AliasRow.name == name))
        if row is None or row.version != version.number:
            if name == CHAMPION and most is not None:
                champion = None if row is None else find_version(session, row.version)
                _require_promotable(session, version, champion, most)
            row = _point(session, row, name, version.number, "promote", _who(request, caller), move.note)
        return views.alias(row)


def _require_promotable(session: Session, version: VersionRow, champion: VersionRow | None, most: float) -> None:
    """Requires that all domains of a version have evaluated it, and none scores over `most` points below the champion.

    Raises:
        RefusedError: names the domains, with their scores.
    """
    table = views.table(session, version)
    if table.missing:
        found = f"version {version.number} is not evaluated on {', '.join(table.missing)}"
        todo = "let these owners' workers evaluate it (evaluation_sums in their policy), or lift promotion_max_fall"
        raise RefusedError(ProblemType.NOT_PROMOTABLE, found, where="version", todo=todo)
    if champion is None:
        return
    before = {each.domain: each.normalised for each in views.table(session, champion).scores}
    falls = [
        f"{each.domain} from {before[each.domain]:.2f} to {each.normalised:.2f}"
        for each in table.scores
        if each.domain in before and each.normalised < before[each.domain] - most
    ]
    if falls:
        found = f"from version {champion.number} to {version.number} fall by more than {most:g}: {', '.join(falls)}"
        todo = "see moerge version table; promote another version, or raise promotion_max_fall"
        raise RefusedError(ProblemType.NOT_PROMOTABLE, found, where="version", todo=todo)


def _who(request: Request, caller: Identity) -> str:
    return f"{caller.who}, token {request.state.token}"


def _point(session: Session, row: AliasRow | None, name: str, version: int, kind: str, who: str, note: str) -> AliasRow:
    when, previous = tables.now(), None if row is None else row.version
    if row is None:
        row = AliasRow(name=name)
        session.add(row)
    row.version, row.moved = version, when
    session.add(
        AliasMoveRow(alias=name, version=version, previous=previous, kind=kind, who=who, note=note, created=when)
    )
    session.flush()
    return row


@router.post("/{name}/rollback")
def roll_back(request: Request, caller: Operator, name: AliasName, back: Rollback) -> Alias:
    """Takes the last promotion back, in one call.

    `version` is where the alias points now; called again after it has moved, it changes nothing. Role: operator.
    """
    with transaction(request.app.state.engine) as session:
        row = _find(session, name)
        moves = _moves(session, name)
        if row.version != back.version:
            if moves[-1].kind == "rollback" and moves[-1].previous == back.version:
                return views.alias(row)
            found = f"the alias {name!r} points to version {row.version}, not {back.version}"
            raise RefusedError(ProblemType.CONFLICT, found, where="version", todo="look again, then decide")
        for number in reversed(_promoted(moves)[:-1]):
            version = find_version(session, number)
            if version.retired is None and version.withheld is None:
                return views.alias(_point(session, row, name, number, "rollback", _who(request, caller), back.note))
        found = f"the alias {name!r} has no earlier version that is still served"
        raise RefusedError(ProblemType.CONFLICT, found, where="name", todo="promote another version")


def _promoted(moves: list[AliasMoveRow]) -> list[int]:
    """The promotions that were not taken back, oldest first; the last is where the alias points."""
    stack: list[int] = []
    for move in moves:
        if move.version is None:
            stack = []
        elif move.kind == "promote":
            stack.append(move.version)
        else:
            while stack and stack[-1] != move.version:
                stack.pop()
    return stack


@router.delete("/{name}", status_code=204)
def remove_alias(request: Request, caller: Operator, name: AliasName) -> None:
    """Removes an alias; its history stays. The same again changes nothing. Role: operator."""
    with transaction(request.app.state.engine) as session:
        row = session.scalar(select(AliasRow).where(AliasRow.name == name))
        if row is not None:
            session.add(
                AliasMoveRow(
                    alias=name, version=None, previous=row.version, kind="remove", who=_who(request, caller), note=""
                )
            )
            session.delete(row)


@router.get("")
def list_aliases(request: Request, caller: Anyone, after: After = 0) -> Page[Alias]:
    """Lists aliases. Role: any."""
    with reading(request.app.state.engine) as session:
        return page(session, select(AliasRow), AliasRow.number, after, views.alias)


@router.get("/{name}")
def show_alias(request: Request, caller: Anyone, name: AliasName) -> Alias:
    """One alias. Role: any."""
    with reading(request.app.state.engine) as session:
        return views.alias(_find(session, name))


@router.get("/{name}/history")
def show_history(request: Request, caller: Operator, name: AliasName, after: After = 0) -> Page[AliasMove]:
    """Who moved an alias, when, from where to where, and why. Role: operator."""
    with reading(request.app.state.engine) as session:
        query = select(AliasMoveRow).where(AliasMoveRow.alias == name)
        return page(session, query, AliasMoveRow.number, after, views.alias_move)
