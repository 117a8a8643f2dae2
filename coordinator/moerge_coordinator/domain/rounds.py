"""Rounds: contributions asked for, with a deadline and a minimum; at the deadline a round ends."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import contributors
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import DomainRow, RoundRow, TrunkRow, now, tell
from moerge_proto.problems import ProblemType
from moerge_proto.rounds import NewRound, Round, RoundChange, RoundState
from moerge_proto.statistics_file import Kind


def view(session: Session, row: RoundRow) -> Round:
    """The round, with the domains that have contributed by now."""
    come = contributors.contributed(session, row.kind, row.trunk)
    contributed = [domain for domain in row.domains if domain in come]
    missing = [domain for domain in row.domains if domain not in come]
    if not missing:
        state = RoundState.COMPLETE
    elif now(session) < row.deadline:
        state = RoundState.OPEN
    else:
        state = RoundState.ENOUGH if len(contributed) >= row.minimum else RoundState.SHORT
    return Round(
        number=row.number,
        name=row.name,
        kind=row.kind,
        trunk=row.trunk,
        minimum=row.minimum,
        deadline=row.deadline,
        state=state,
        contributed=contributed,
        missing=missing,
        created=row.created,
    )


def own_part(asked: Round, domains: Collection[str]) -> Round | None:
    """The part of a round for the owner of these domains: itself."""
    contributed = [domain for domain in asked.contributed if domain in domains]
    missing = [domain for domain in asked.missing if domain in domains]
    if not contributed and not missing:
        return None
    return asked.model_copy(update={"contributed": contributed, "missing": missing})


def find(session: Session, name: str, where: str = "name") -> RoundRow:
    """The round of that name.

    Raises:
        RefusedError: there is none.
    """
    row = session.scalar(select(RoundRow).where(RoundRow.name == name))
    if row is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"no round {name!r}", where=where, todo="see: moerge round list")
    return row


def ended(session: Session, name: str, kind: Kind) -> Round:
    """A round of that kind for which nobody is waited any more, and for which enough have contributed.

    Raises:
        RefusedError: it goes on, or too few came, or it is of the other kind.
    """
    asked = view(session, find(session, name, "round"))
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


def open_round(session: Session, new: NewRound) -> Round:
    """Asks domains for contributions. The same round again changes nothing.

    Raises:
        RefusedError: another round has the name, a domain is nobody's, or there is no trunk yet.
    """
    row = session.scalar(select(RoundRow).where(RoundRow.name == new.name))
    if row is not None:
        there = (row.kind, row.domains, row.minimum, row.deadline)
        if there != (new.kind, new.domains, new.minimum, new.deadline):
            found = f"round {new.name!r} is there, and another one"
            raise RefusedError(ProblemType.CONFLICT, found, where="name", todo="choose another name, or change it")
        return view(session, row)
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
    tell(session, f"round {row.name} is open until {row.deadline:%Y-%m-%d %H:%M} UTC: {', '.join(row.domains)}")
    return view(session, row)


def change(session: Session, name: str, asked: RoundChange) -> Round:
    """Moves a round's deadline, or changes how many are enough.

    Raises:
        RefusedError: there is no such round, or more are asked for than it has domains.
    """
    row = find(session, name)
    if asked.minimum is not None:
        if asked.minimum > len(row.domains):
            found = f"{asked.minimum} of {len(row.domains)} domains"
            raise RefusedError(ProblemType.INVALID_REQUEST, found, where="minimum", todo="ask for fewer")
        row.minimum = asked.minimum
    if asked.deadline is not None:
        row.deadline = asked.deadline
    session.flush()
    tell(session, f"round {name} needs {row.minimum} domains by {row.deadline:%Y-%m-%d %H:%M} UTC")
    return view(session, row)
