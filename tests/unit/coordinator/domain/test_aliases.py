"""Aliases: forward and back, and champion only to versions that no domain is much worse with."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import aliases, benchmarks, evaluations, version_keys
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import AliasMoveRow, ExpertRow, VersionKeyRow, VersionRow, now
from moerge_proto.evaluations import NewEvaluation, Scored
from moerge_proto.versions import CHAMPION, Move, Rollback
from support.benchmarks import result, results_of
from support.rows import add_body, add_contribution, add_expert, add_version, dense_of

FINGERPRINT = "f" * 64
MOST = aliases.Limits(points=2.0, errors=3.0)


@pytest.fixture
def versions(session: Session) -> list[VersionRow]:
    """Versions 1 to 3 of law and art, which differ by lambda."""
    experts = [add_expert(session, domain) for domain in ("law", "art")]
    body = add_body(session)
    for expert in experts:
        add_contribution(session, expert, body)
    return [add_version(session, options={"ridge_lambda": value}) for value in (1.0, 2.0, 3.0)]


def promote(session: Session, version: int, most_fall: float = 2.0, name: str = CHAMPION, **how: str) -> int:
    move = Move.model_validate({"version": version, **how})
    return aliases.promote(session, name, move, "operator, token 1", aliases.Limits(most_fall, 3.0)).version


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
        limits = aliases.Limits(points=2.0, errors=3.0, signed=True)
        return aliases.promote(session, name, Move(version=number, override="now"), "operator", limits).version

    session.add(VersionKeyRow(public_key="PEM", fingerprint=FINGERPRINT))
    versions[1].key, versions[2].key = None, FINGERPRINT
    with pytest.raises(RefusedError, match="version 2 is not signed") as caught:
        move(2)
    limits = aliases.Limits(points=2.0, errors=3.0, signed=True)
    assert aliases.check(session, 2, limits).refusal == caught.value.what
    assert aliases.check(session, 3, limits).refusal is None
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


def evaluate(session: Session, version: VersionRow, domain: str, points: float) -> None:
    """An evaluation by which a domain has about so many normalised points."""
    dense = Scored(nll=100.0, tokens=100)
    version_ = Scored(nll=100.0 + (100 - points), tokens=100)
    new = NewEvaluation(
        number=version.number, domain=domain, expert=dense_of(domain), documents=5, context=64, stride=32,
        dense=dense, version=version_, oracle=version_, routed=[[60, 40]] * 2,
    )  # fmt: skip
    evaluations.evaluate(session, f"{domain}-owner", version.number, new)


def test_champion_promotion_is_refused_if_a_domain_score_drops(session: Session, versions: list[VersionRow]) -> None:
    first, second, third = versions
    for version, law, art in ((first, 99.0, 98.0), (second, 98.5, 99.0), (third, 95.0, 99.5)):
        evaluate(session, version, "law", law)
        evaluate(session, version, "art", art)
    assert promote(session, 1, most_fall=1.0) == 1
    assert promote(session, 2, most_fall=1.0) == 2
    with pytest.raises(RefusedError, match=r"law \(owner law-owner\) from 98\.51 to 95\.12") as caught:
        promote(session, 3, most_fall=1.0)
    assert caught.value.where == "override"
    assert promote(session, 3, most_fall=1.0, name="candidate") == 3, "the bound is champion's"
    assert promote(session, 3, most_fall=4.0) == 3


def test_override_reason_of_a_refused_promotion_is_recorded(session: Session, versions: list[VersionRow]) -> None:
    for version, points in zip(versions, (99.0, 90.0, 95.0), strict=True):
        evaluate(session, version, "law", points)
    promote(session, 1, override="nothing was refused")
    with pytest.raises(RefusedError, match=r"law \(owner law-owner\) from 99\.00 to 90\.48"):
        promote(session, 2)
    assert promote(session, 2, override="law changed its text") == 2
    assert promote(session, 3, override="nothing was refused") == 3
    moves = session.scalars(select(AliasMoveRow).order_by(AliasMoveRow.number))
    assert [move.override for move in moves] == [None, "law changed its text", None]


def test_domains_without_both_evaluations_only_cause_warnings(session: Session, versions: list[VersionRow]) -> None:
    evaluate(session, versions[0], "law", 99.0)
    evaluate(session, versions[1], "art", 10.0)
    moved = [aliases.promote(session, CHAMPION, Move(version=number), "operator", MOST) for number in (1, 2)]
    first, second = ("version 1 is not evaluated on art", "version 2 is not evaluated on law")
    assert [item.warnings for item in moved] == [[first], [first, second]]
    assert aliases.check(session, 1, MOST).warnings == [second, first]
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


def test_champion_promotion_is_refused_if_a_benchmark_is_worse_beyond_its_errors(
    session: Session, versions: list[VersionRow]
) -> None:
    """The standard error of each difference is 5, so a fall by 15 is allowed."""
    for number, error, accuracy, loss in ((1, 3.0, 60.0, 20.0), (2, 4.0, 45.0, 35.0), (3, 4.0, 44.9, 10.0)):
        benchmarks.report(session, None, number, results_of(number, result(value=accuracy, error=error)))
        lower = result("lambada", loss, error, metric="perplexity", higher_is_better=False)
        benchmarks.report(session, "law-owner", number, results_of(number, lower))
    promote(session, 1)
    assert promote(session, 2) == 2
    promote(session, 1)
    assert not aliases.check(session, 2, MOST).falls
    [fall] = aliases.check(session, 3, MOST).falls
    with pytest.raises(RefusedError, match="worse by more than 3 standard errors") as caught:
        promote(session, 3)
    assert caught.value.what == f"on version 3 {fall}"
    assert caught.value.what.endswith(": arc_easy (acc), reported by operator, from 60.0 ± 3.0 to 44.9 ± 4.0")
    assert promote(session, 3, name="candidate") == 3, "the bound is champion's"
    assert promote(session, 3, override="another prompt") == 3


def test_benchmarks_under_other_conditions_only_cause_warnings(session: Session, versions: list[VersionRow]) -> None:
    benchmarks.report(session, None, 1, results_of(1, result("a", 0.9), result("b", 0.9), result("c", 0.9, None)))
    benchmarks.report(session, "law-owner", 1, results_of(1, result("d", 0.9)))
    benchmarks.report(session, None, 2, results_of(2, result("a", 0.1, seed=1), result("c", 0.1, None)))
    benchmarks.report(session, "art-owner", 2, results_of(2, result("d", 0.1)))
    moved = [aliases.promote(session, CHAMPION, Move(version=number), "operator", MOST) for number in (1, 2)]
    assert (
        moved[1].warnings[-1]
        == "version 2 has no result to compare with version 1's: a (acc), b (acc), c (acc), d (acc)"
    )
