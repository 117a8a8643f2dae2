"""Aliases: forward and back, and champion only to versions that are not much worse on a domain or task."""

import math
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import aliases, evaluations, version_keys
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import AliasMoveRow, ExpertRow, VersionKeyRow, VersionRow, now
from moerge_proto.evaluations import Perplexity, TaskResult
from moerge_proto.owners import Identity, Role
from moerge_proto.versions import CHAMPION, Move, Rollback
from support.evaluations import evaluation, result, sums
from support.rows import add_body, add_contribution, add_expert, add_version, dense_of

FINGERPRINT = "f" * 64
MOST = Settings(home=Path("unused"))
SIGNED = Settings(home=Path("unused"), promotion_signed=True)


@pytest.fixture
def versions(session: Session) -> list[VersionRow]:
    """Versions 1 to 3 of law and art, which differ by lambda."""
    experts = [add_expert(session, domain) for domain in ("law", "art")]
    body = add_body(session)
    for expert in experts:
        add_contribution(session, expert, body)
    return [add_version(session, options={"ridge_lambda": value}) for value in (1.0, 2.0, 3.0)]


def promote(session: Session, version: int, name: str = CHAMPION, **how: str) -> int:
    move = Move.model_validate({"version": version, **how})
    return aliases.promote(session, name, move, "operator, token 1", MOST).version


def back(session: Session, version: int) -> int:
    return aliases.roll_back(session, CHAMPION, Rollback(version=version), "operator, token 1").version


def test_alias_is_promoted_and_rolled_back_idempotently(session: Session, versions: list[VersionRow]) -> None:
    assert [promote(session, number) for number in (1, 2, 2, 3)] == [1, 2, 2, 3]
    assert [back(session, 3), back(session, 3), back(session, 2)] == [2, 2, 1]
    with pytest.raises(RefusedError, match="no earlier version"):
        back(session, 1)
    promote(session, 3)
    with pytest.raises(RefusedError, match="points to version 3, not 1"):
        back(session, 1)
    moves = session.scalars(select(AliasMoveRow).order_by(AliasMoveRow.number))
    assert [(move.kind, move.previous, move.version) for move in moves] == [
        ("promote", None, 1), ("promote", 1, 2), ("promote", 2, 3), ("rollback", 3, 2), ("rollback", 2, 1),
        ("promote", 1, 3),
    ]  # fmt: skip


def test_a_rollback_passes_over_versions_that_are_not_served(session: Session, versions: list[VersionRow]) -> None:
    for number in (1, 2, 3):
        promote(session, number)
    versions[1].withheld = now(session)
    assert back(session, 3) == 1


def test_champion_can_be_required_to_be_signed(session: Session, versions: list[VersionRow]) -> None:
    def move(number: int, name: str = CHAMPION) -> int:
        return aliases.promote(session, name, Move(version=number, override="now"), "operator", SIGNED).version

    session.add(VersionKeyRow(public_key="PEM", fingerprint=FINGERPRINT))
    versions[1].key, versions[2].key = None, FINGERPRINT
    with pytest.raises(RefusedError, match="version 2 is not signed") as caught:
        move(2)
    assert aliases.check(session, 2, SIGNED).refusal == caught.value.what
    assert aliases.check(session, 3, SIGNED).refusal is None
    assert "moerge version sign 2" in caught.value.todo
    assert [move(2, "candidate"), move(1), promote(session, 2), move(3)] == [2, 1, 2, 3]
    signed = aliases.roll_back(session, CHAMPION, Rollback(version=3), "operator", signed=True)
    assert signed.version == 1
    with pytest.raises(RefusedError, match=r"still served\n"):
        aliases.roll_back(session, "candidate", Rollback(version=2), "operator", signed=True)
    version_keys.revoke(session, FINGERPRINT)
    with pytest.raises(RefusedError, match="version 3 is not signed"):
        move(3)


def test_an_alias_points_to_no_version_that_is_not_served(session: Session, versions: list[VersionRow]) -> None:
    versions[0].retired, versions[1].withheld = now(session), now(session)
    for number, reason in ((1, "retired"), (2, "withheld"), (9, "no version 9")):
        with pytest.raises(RefusedError, match=reason):
            promote(session, number)


def test_a_removed_alias_begins_anew_and_its_history_stays(session: Session, versions: list[VersionRow]) -> None:
    promote(session, 1)
    promote(session, 2)
    aliases.remove(session, CHAMPION, "operator, token 1")
    aliases.remove(session, CHAMPION, "operator, token 1")
    promote(session, 3)
    with pytest.raises(RefusedError, match="no earlier version"):
        back(session, 3)
    assert len(session.scalars(select(AliasMoveRow)).all()) == 4


def send(session: Session, version: int, who: str | None, *scores: Perplexity | TaskResult) -> None:
    role = Role.OPERATOR if who is None else Role.OWNER
    caller = Identity(role=role, owner=who and f"{who}-owner", domains=[who] if who else [])
    evaluations.evaluate(session, caller, version, evaluation(version, *scores))


def evaluate(session: Session, version: int, domain: str, points: float) -> None:
    """An evaluation by which a domain has so many normalised points."""
    nll = 20 - 10 * math.log(points / 100)
    send(session, version, domain, sums(dense_of(domain), nll, domain))


def test_champion_doesn_t_move_to_a_version_that_is_worse_on_a_domain_or_a_task(
    session: Session, versions: list[VersionRow]
) -> None:
    """The standard error of each task's difference is 5, so a fall by 15 is allowed; of a domain, one by 2 points."""
    for number, law, error, accuracy, loss in (
        (1, 99.0, 3.0, 60.0, 20.0), (2, 97.1, 4.0, 45.0, 35.0), (3, 96.9, 4.0, 44.9, 10.0),
    ):  # fmt: skip
        evaluate(session, number, "law", law)
        send(session, number, None, result(value=accuracy, error=error))
        send(session, number, "law", result("lambada", loss, error, higher_is_better=False))
    promote(session, 1)
    assert not aliases.check(session, 2, MOST).falls
    falls = [
        "law, reported by law-owner, from 99 to 96.9",
        "arc_easy (acc), reported by operator, from 60.0 ± 3.0 to 44.9 ± 4.0",
    ]
    assert aliases.check(session, 3, MOST).falls == falls
    with pytest.raises(RefusedError) as caught:
        promote(session, 3)
    told = f"version 3 is worse by more than 2 points or 3 standard errors: {'; '.join(falls)}"
    assert (caught.value.what, caught.value.where) == (told, "override")
    assert promote(session, 3, name="candidate") == 3, "the bound is champion's"
    assert promote(session, 2, override="nothing was refused") == 2
    promote(session, 1)
    assert promote(session, 3, override="law changed its text") == 3
    moves = session.scalars(select(AliasMoveRow).where(AliasMoveRow.alias == CHAMPION).order_by(AliasMoveRow.number))
    assert [move.override for move in moves] == [None, None, None, "law changed its text"]


def test_scores_that_can_t_be_compared_only_cause_warnings(session: Session, versions: list[VersionRow]) -> None:
    evaluate(session, 1, "law", 99.0)
    evaluate(session, 2, "art", 10.0)
    send(session, 1, None, result("a", 0.9), result("b", 0.9), result("c", 0.9, None), result("e"), result("f"))
    send(session, 1, "law", result("d", 0.9))
    send(session, 2, None, result("a", 0.1, seed=1), result("c", 0.1, None))
    send(session, 2, "art", result("d", 0.1))
    moved = [aliases.promote(session, CHAMPION, Move(version=number), "operator", MOST) for number in (1, 2)]
    first = "version 1 has no score to compare on art"
    second = "version 2 has no score to compare on law, a (acc), b (acc), c (acc), e (acc) and 2 others"
    assert [item.warnings for item in moved] == [[first], [first, second]]
    assert aliases.check(session, 2, MOST).warnings == [], "it is the champion"


def test_lost_domains_cause_a_warning_unless_withdrawn(session: Session, versions: list[VersionRow]) -> None:
    law, art = session.scalars(select(ExpertRow).order_by(ExpertRow.number))
    number = add_version(session, experts=[art.digest]).number

    def warned() -> list[str]:
        return aliases.promote(session, "candidate", Move(version=number), "operator", MOST).warnings

    promote(session, 1, name="candidate")
    assert warned() == [f"version {number} lacks domains of version 1: law"]
    withdraw_expert(session, law, serve=True)
    promote(session, 1, name="candidate")
    assert warned() == []
