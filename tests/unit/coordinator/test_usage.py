"""Reported use: of a served version's domains, one report of a reader, to owners their own domains alone."""

from collections.abc import Sequence

import pytest
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator import usage
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import UsageRow, VersionRow, now
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType
from moerge_proto.usage import ExpertShares, NewUsage
from support.rows import add_body, add_contribution, add_expert, add_version

OPERATOR = Identity(role=Role.OPERATOR, owner=None, domains=[])
LAW, ART = (Identity(role=Role.OWNER, owner=f"{name}-owner", domains=[name]) for name in ("law", "art"))
BOB, NAMELESS = (Identity(role=Role.READER, owner=None, domains=[], name=name) for name in ("bob", None))


@pytest.fixture
def version(session: Session) -> VersionRow:
    """Version 1 of law and art; code has an expert, and isn't in it."""
    body = add_body(session)
    for domain in ("law", "art"):
        add_contribution(session, add_expert(session, domain), body)
    add_expert(session, "code")
    return add_version(session)


def shares(**tokens: float) -> dict[str, ExpertShares]:
    return {domain: ExpertShares(tokens=share, weight=share, tokens_error=0.01) for domain, share in tokens.items()}


def report(session: Session, who: Identity, reporter: str, **tokens: float) -> Sequence[UsageRow]:
    return usage.report(session, who, reporter, "1", shares(**tokens))


def seen(session: Session, who: Identity, reporter: str = "token 9") -> list[tuple[str, str | None, float]]:
    rows = session.scalars(usage.visible(who, reporter).order_by(UsageRow.number))
    return [(row.domain, row.reader, row.shares.tokens) for row in rows]


def test_each_role_sees_its_part(session: Session, version: VersionRow) -> None:
    report(session, BOB, "bob", law=0.7, art=0.3)
    report(session, NAMELESS, "token 4", law=0.1, art=0.9)
    every = [("law", "bob", 0.7), ("art", "bob", 0.3), ("law", None, 0.1), ("art", None, 0.9)]
    assert seen(session, OPERATOR) == every
    assert seen(session, LAW) == [every[0], every[2]]
    assert seen(session, ART) == [every[1], every[3]]
    assert seen(session, NAMELESS, "token 4") == every[2:]
    assert seen(session, BOB, "bob") == every[:2]
    assert seen(session, NAMELESS, "token 5") == []


def test_a_later_report_replaces_its_reader_s_alone(session: Session, version: VersionRow) -> None:
    report(session, BOB, "bob", law=0.7, art=0.3)
    report(session, NAMELESS, "token 4", law=0.1, art=0.9)
    report(session, BOB, "bob", law=0.5)
    assert seen(session, OPERATOR) == [("law", None, 0.1), ("art", None, 0.9), ("law", "bob", 0.5)]


def test_domains_of_other_versions_and_versions_that_are_not_served_are_refused(
    session: Session, version: VersionRow
) -> None:
    with pytest.raises(RefusedError, match="no expert of code") as caught:
        report(session, BOB, "bob", law=0.5, code=0.5)
    assert (caught.value.kind, caught.value.where) == (ProblemType.INVALID_REQUEST, "experts")
    assert caught.value.todo == "use its domains: law, art"
    with pytest.raises(RefusedError, match="no version 2"):
        usage.report(session, BOB, "bob", "2", shares(law=1.0))
    version.retired = now(session)
    with pytest.raises(RefusedError, match="is retired"):
        report(session, BOB, "bob", law=1.0)
    assert session.scalars(select(UsageRow)).all() == []


def test_shares_sum_to_at_most_1_but_for_rounding() -> None:
    thirds = dict.fromkeys(("a", "b", "c", "d", "e", "f"), ExpertShares(tokens=1 / 6, weight=1 / 6))
    assert {item.tokens for item in NewUsage(experts=thirds).experts.values()} == {0.167}
    for wrong in (shares(law=0.7, art=0.4), shares(law=1.01 / 2, art=1.01 / 2)):
        with pytest.raises(ValidationError, match=r"shares of tokens sum to 1\.\d+; expected at most 1"):
            NewUsage(experts=wrong)
    for share in (-0.1, 1.1, float("nan"), float("inf")):
        with pytest.raises(ValidationError):
            shares(law=share)
