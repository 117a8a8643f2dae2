"""Rounds: requests for contributions, with a deadline and a minimum. A round ends at its deadline."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import contributors
from moerge_coordinator.domain.contribution_rules import RULES
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.tables import DomainRow, RoundRow, now, tell
from moerge_proto.options import ANCHOR
from moerge_proto.problems import ProblemType
from moerge_proto.rounds import NewRound, Round, RoundChange, RoundState
from moerge_proto.statistics_file import Kind


def view(session: Session, row: RoundRow) -> Round:
    """The round, with the contributed and missing domains."""
    come = contributors.contributed(session, row.kind, row.body)
    contributed = [domain for domain in row.domains if domain in come]
    missing = [domain for domain in row.domains if domain not in come]
    if not missing:
        state = RoundState.COMPLETE
    elif now(session) < row.deadline:
        state = RoundState.OPEN
    else:
        state = RoundState.ENOUGH if len(contributed) >= row.minimum else RoundState.SHORT
    derived = {"state": state, "contributed": contributed, "missing": missing}
    columns = {name: getattr(row, name) for name in Round.model_fields.keys() - derived.keys()}
    return Round.model_validate({**columns, **derived})


def own_part(whole: Round, domains: Collection[str]) -> Round | None:
    """The round without other owners' domains."""
    contributed = [domain for domain in whole.contributed if domain in domains]
    missing = [domain for domain in whole.missing if domain in domains]
    if not contributed and not missing:
        return None
    return whole.model_copy(update={"contributed": contributed, "missing": missing})


def find(session: Session, name: str, where: str = "name") -> RoundRow:
    row = session.scalar(select(RoundRow).where(RoundRow.name == name))
    return existing(row, f"round {name!r}", where, "run: moerge round list")


def ended(session: Session, name: str, kind: Kind) -> Round:
    """A completed or ended round of that kind, with enough contributions."""
    result = view(session, find(session, name, "round"))
    if result.kind != kind:
        problem = f"round {name!r} asks for {result.kind} contributions"
        raise RefusedError(ProblemType.CONFLICT, problem, where="round", todo=f"name one for {kind} contributions")
    missing, count = ", ".join(result.missing), len(result.contributed)
    if result.state is RoundState.OPEN:
        problem = f"round {name!r} waits for {missing} until {result.deadline:%Y-%m-%d %H:%M} UTC"
        todo = "wait, or change its deadline: moerge round change"
        raise RefusedError(ProblemType.NOT_READY, problem, where="round", todo=todo)
    if result.state is RoundState.SHORT:
        problem = f"round {name!r} has {count} contributions of at least {result.minimum}; missing: {missing}"
        todo = "change its deadline or minimum: moerge round change"
        raise RefusedError(ProblemType.NOT_READY, problem, where="round", todo=todo)
    return result


def open_round(session: Session, new: NewRound) -> Round:
    """Opens a round. Idempotent."""
    row = session.scalar(select(RoundRow).where(RoundRow.name == new.name))
    if row is not None:
        there = (row.kind, row.domains, row.minimum, row.deadline)
        if there != (new.kind, new.domains, new.minimum, new.deadline):
            problem = f"a different round {new.name!r} already exists"
            raise RefusedError(ProblemType.CONFLICT, problem, where="name", todo="choose another name, or change it")
        return view(session, row)
    known = set(session.scalars(select(DomainRow.name).where(DomainRow.name != ANCHOR)))
    if unknown := [domain for domain in new.domains if domain not in known]:
        problem = f"domain {unknown[0]!r} has no owner"
        raise RefusedError(ProblemType.NOT_FOUND, problem, where="domains", todo="first approve its owner")
    row = RoundRow(**dict(new), body=RULES[new.kind].body_of_round(session))
    session.add(row)
    session.flush()
    tell(session, f"round {row.name} is open until {row.deadline:%Y-%m-%d %H:%M} UTC: {', '.join(row.domains)}")
    return view(session, row)


def change(session: Session, name: str, asked: RoundChange) -> Round:
    row = find(session, name)
    if asked.minimum is not None:
        if asked.minimum > len(row.domains):
            problem = f"{asked.minimum} of {len(row.domains)} domains"
            raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="minimum", todo="lower it")
        row.minimum = asked.minimum
    if asked.deadline is not None:
        row.deadline = asked.deadline
    session.flush()
    tell(session, f"round {name} needs {row.minimum} domains by {row.deadline:%Y-%m-%d %H:%M} UTC")
    return view(session, row)
