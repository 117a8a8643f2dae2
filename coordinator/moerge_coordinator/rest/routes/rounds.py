"""Rounds: contributions asked for, with a deadline and a minimum; nobody is waited for for ever."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import Operator, OperatorOrOwner
from moerge_coordinator.rest.lists import After, page
from moerge_coordinator.storage import tables
from moerge_coordinator.storage.database import reading, transaction
from moerge_coordinator.storage.tables import ContributionRow, DomainRow, RoundRow, TrunkContributionRow, TrunkRow
from moerge_proto.digests import Name
from moerge_proto.messages import Page
from moerge_proto.problems import ProblemType
from moerge_proto.rounds import NewRound, Round, RoundChange, RoundState

router = APIRouter(prefix="/rounds", tags=["rounds"])
RoundName = Annotated[Name, Path()]


def _view(session: Session, row: RoundRow) -> Round:
    if row.kind == "router":
        part = ContributionRow
        query = select(part.domain).where(part.active, part.trunk == row.trunk, part.split == "statistics")
    else:
        query = select(TrunkContributionRow.domain).where(TrunkContributionRow.active)
    come = set(session.scalars(query))
    contributed = [domain for domain in row.domains if domain in come]
    missing = [domain for domain in row.domains if domain not in come]
    if not missing:
        state = RoundState.COMPLETE
    elif tables.now() < row.deadline:
        state = RoundState.OPEN
    else:
        state = RoundState.ENOUGH if len(contributed) >= row.minimum else RoundState.SHORT
    return Round(
        number=row.number,
        name=row.name,
        kind=row.kind,  # type: ignore[arg-type]  # one of the two words
        trunk=row.trunk,
        minimum=row.minimum,
        deadline=row.deadline,
        state=state,
        contributed=contributed,
        missing=missing,
        created=row.created,
    )


def _find(session: Session, name: str, where: str = "name") -> RoundRow:
    row = session.scalar(select(RoundRow).where(RoundRow.name == name))
    if row is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"no round {name!r}", where=where, todo="see GET /v1/rounds")
    return row


def ended_round(request: Request, name: str, kind: str) -> Round:
    """A round of that kind for which nobody is waited any more, and for which enough have contributed.

    Raises:
        RefusedError: it goes on, or too few came, or it is of the other kind.
    """
    with transaction(request.app.state.engine) as session:
        asked = _view(session, _find(session, name, "round"))
    if asked.kind != kind:
        found = f"round {name!r} asks for {asked.kind} contributions"
        raise RefusedError(ProblemType.CONFLICT, found, where="round", todo=f"name one for {kind} contributions")
    missing = ", ".join(asked.missing)
    if asked.state is RoundState.OPEN:
        found = f"round {name!r} waits for {missing} until {asked.deadline:%Y-%m-%d %H:%M} UTC"
        todo = "wait, or move its deadline: moerge round change"
        raise RefusedError(ProblemType.NOT_READY, found, where="round", todo=todo)
    if asked.state is RoundState.SHORT:
        come = len(asked.contributed)
        found = f"{come} have contributed to round {name!r}, {asked.minimum} are needed; {missing} did not"
        todo = "move its deadline or lower its minimum: moerge round change"
        raise RefusedError(ProblemType.NOT_READY, found, where="round", todo=todo)
    return asked


@router.post("", status_code=201)
def open_round(request: Request, caller: Operator, new: NewRound) -> Round:
    """Asks domains for contributions. The same round again changes nothing. Role: operator."""
    with transaction(request.app.state.engine) as session:
        row = session.scalar(select(RoundRow).where(RoundRow.name == new.name))
        if row is not None:
            if (row.kind, row.domains, row.minimum, row.deadline) != (
                new.kind, new.domains, new.minimum, new.deadline,
            ):  # fmt: skip
                found = f"round {new.name!r} is there, and another one"
                raise RefusedError(ProblemType.CONFLICT, found, where="name", todo="choose another name, or change it")
            return _view(session, row)
        known = set(session.scalars(select(DomainRow.name)))
        if unknown := [domain for domain in new.domains if domain not in known]:
            found = f"nobody speaks for {unknown[0]!r}"
            raise RefusedError(ProblemType.NOT_FOUND, found, where="domains", todo="add its owner first")
        trunk = None
        if new.kind == "router":
            trunk = session.scalar(select(TrunkRow.digest).where(TrunkRow.current))
            if trunk is None:
                raise RefusedError(ProblemType.NOT_READY, "no trunk yet", where="kind", todo="merge one first")
        row = RoundRow(
            name=new.name,
            kind=new.kind,
            trunk=trunk,
            domains=list(new.domains),
            minimum=new.minimum,
            deadline=new.deadline,
        )
        session.add(row)
        session.flush()
        return _view(session, row)


@router.patch("/{name}")
def change_round(request: Request, caller: Operator, name: RoundName, change: RoundChange) -> Round:
    """Moves a round's deadline, or changes how many are enough. Role: operator."""
    with transaction(request.app.state.engine) as session:
        row = _find(session, name)
        if change.minimum is not None:
            if change.minimum > len(row.domains):
                found = f"{change.minimum} of {len(row.domains)} domains"
                raise RefusedError(ProblemType.INVALID_REQUEST, found, where="minimum", todo="ask for fewer")
            row.minimum = change.minimum
        if change.deadline is not None:
            row.deadline = change.deadline
        session.flush()
        return _view(session, row)


@router.get("")
def list_rounds(request: Request, caller: OperatorOrOwner, after: After = 0) -> Page[Round]:
    """Lists rounds, with who has contributed; an owner sees those that ask it. Role: operator or owner."""
    with reading(request.app.state.engine) as session:
        found = page(session, select(RoundRow), RoundRow.number, after, lambda row: _view(session, row))
    if caller.owner is None:
        return found
    own = set(caller.domains)
    return Page(items=[view for row in found.items if (view := _own(row, own)) is not None], next=found.next)


def _own(asked: Round, domains: set[str]) -> Round | None:
    """What an owner may see of a round: itself."""
    contributed = [domain for domain in asked.contributed if domain in domains]
    missing = [domain for domain in asked.missing if domain in domains]
    if not contributed and not missing:
        return None
    return asked.model_copy(update={"contributed": contributed, "missing": missing})


@router.get("/{name}")
def show_round(request: Request, caller: Operator, name: RoundName) -> Round:
    """One round, with who has contributed and who is missing. Role: operator."""
    with reading(request.app.state.engine) as session:
        return _view(session, _find(session, name))
