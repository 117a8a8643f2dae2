"""Rounds: who is waited for, until when, and what an owner sees."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from moerge_coordinator.domain import rounds
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import BodyRow, ExpertRow
from moerge_proto.rounds import NewRound, Round, RoundChange, RoundState
from support.rows import START, Clock, add_body, add_contribution, add_expert

DEADLINE = START + timedelta(hours=1)


@pytest.fixture
def experts(session: Session) -> dict[str, ExpertRow]:
    return {domain: add_expert(session, domain) for domain in ("law", "art", "code")}


@pytest.fixture
def body(session: Session, experts: dict[str, ExpertRow]) -> BodyRow:
    return add_body(session, list(experts.values()))


def opened(
    session: Session, kind: str = "router", minimum: int = 2, domains: tuple[str, ...] = ("law", "art")
) -> Round:
    new = NewRound.model_validate(
        {"name": "first", "kind": kind, "domains": list(domains), "minimum": minimum, "deadline": DEADLINE}
    )
    return rounds.open_round(session, new)


def state(session: Session) -> tuple[RoundState, list[str]]:
    view = rounds.view(session, rounds.find(session, "first"))
    return view.state, view.contributed


def test_round_is_complete_with_statistics_of_every_owner(
    session: Session, experts: dict[str, ExpertRow], body: BodyRow
) -> None:
    opened(session)
    add_contribution(session, experts["law"], body)
    add_contribution(session, experts["art"], body, split="tuning")
    add_contribution(session, experts["art"], None)
    add_contribution(session, experts["art"], body, active=False)
    assert state(session) == (RoundState.OPEN, ["law"])
    with pytest.raises(RefusedError, match="waits for art until 2030-01-01 01:00 UTC"):
        rounds.ended(session, "first", "router")
    add_contribution(session, experts["art"], body)
    assert state(session) == (RoundState.COMPLETE, ["law", "art"])
    assert rounds.ended(session, "first", "router").missing == []


def test_a_round_for_bodies_counts_body_contributions(session: Session, experts: dict[str, ExpertRow]) -> None:
    view = opened(session, "body", minimum=1)
    assert view.body is None
    add_contribution(session, experts["law"], None)
    assert state(session) == (RoundState.OPEN, ["law"])
    with pytest.raises(RefusedError, match="asks for body contributions"):
        rounds.ended(session, "first", "router")


def test_at_its_deadline_a_round_ends_with_enough_or_too_few(
    session: Session, clock: Clock, experts: dict[str, ExpertRow], body: BodyRow
) -> None:
    opened(session)
    add_contribution(session, experts["law"], body)
    clock.later(hours=1)
    assert state(session) == (RoundState.SHORT, ["law"])
    with pytest.raises(RefusedError, match="round 'first' has 1 contributions of at least 2; missing: art"):
        rounds.ended(session, "first", "router")
    rounds.change(session, "first", RoundChange(minimum=1))
    assert rounds.ended(session, "first", "router").missing == ["art"]
    rounds.change(session, "first", RoundChange(deadline=DEADLINE + timedelta(hours=1)))
    assert state(session)[0] is RoundState.OPEN


def test_repeated_round_is_idempotent_and_changed_one_refused(session: Session, body: BodyRow) -> None:
    assert opened(session) == opened(session)
    with pytest.raises(RefusedError, match="a different round 'first' already exists"):
        opened(session, minimum=1)


def test_impossible_rounds_are_refused(session: Session, experts: dict[str, ExpertRow]) -> None:
    with pytest.raises(RefusedError, match="no body yet"):
        opened(session)
    with pytest.raises(RefusedError, match="domain 'film' has no owner"):
        opened(session, "body", domains=("law", "film"))
    opened(session, "body")
    with pytest.raises(RefusedError, match="3 of 2 domains"):
        rounds.change(session, "first", RoundChange(minimum=3))
    with pytest.raises(RefusedError, match="no round 'second'"):
        rounds.ended(session, "second", "body")


def test_owner_sees_only_its_own_part_of_a_round(session: Session, body: BodyRow) -> None:
    view = opened(session)
    part = rounds.own_part(view, ["art"])
    assert part is not None
    assert (part.contributed, part.missing) == ([], ["art"])
    assert rounds.own_part(view, ["code"]) is None
