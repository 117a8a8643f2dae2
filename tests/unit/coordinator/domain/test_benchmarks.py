"""Benchmarks: of a served version, by operators and by owners with an expert in it; the last report counts."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import benchmarks
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import BenchmarkRow, ExpertRow, VersionRow, now
from moerge_proto.benchmarks import Benchmark
from moerge_proto.problems import ProblemType
from support.benchmarks import result, results_of
from support.rows import add_body, add_contribution, add_expert, add_version


@pytest.fixture
def law(session: Session) -> ExpertRow:
    return add_expert(session, "law")


@pytest.fixture
def version(session: Session, law: ExpertRow) -> VersionRow:
    """Version 1 of law and art; code has an expert, and isn't in it."""
    experts = [law, add_expert(session, "art")]
    body = add_body(session)
    for expert in experts:
        add_contribution(session, expert, body)
    add_expert(session, "code")
    return add_version(session)


def values(rows: list[Benchmark]) -> list[tuple[str, str, float]]:
    return [(row.reporter, row.result.task, row.result.value) for row in rows]


def test_a_later_report_replaces_the_same_task_of_the_same_reporter(session: Session, version: VersionRow) -> None:
    first = results_of(1, result("arc_easy", 0.5), result("gsm8k", 0.1))
    sent = benchmarks.report(session, None, 1, first)
    assert benchmarks.report(session, None, 1, first) == sent
    benchmarks.report(session, "law-owner", 1, first)
    benchmarks.report(session, None, 1, results_of(1, result("arc_easy", 0.6)))
    assert values(benchmarks.active(session, 1)) == [
        ("operator", "gsm8k", 0.1),
        ("law-owner", "arc_easy", 0.5),
        ("law-owner", "gsm8k", 0.1),
        ("operator", "arc_easy", 0.6),
    ]
    late = benchmarks.report(session, None, 1, first)
    assert [row.active for row in late] == [False, True], "it came before"
    assert len(session.scalars(benchmarks.visible(1, None, replaced=True)).all()) == 5


def test_an_owner_sees_the_operators_results_and_its_own(session: Session, version: VersionRow) -> None:
    for owner, value in ((None, 0.5), ("law-owner", 0.6), ("art-owner", 0.7)):
        benchmarks.report(session, owner, 1, results_of(1, result(value=value)))
    assert [name for name, _, _ in values(benchmarks.active(session, 1, "law-owner"))] == ["operator", "law-owner"]
    assert [name for name, _, _ in values(benchmarks.active(session, 1))] == ["operator", "law-owner", "art-owner"]


def test_only_owners_with_a_ready_expert_in_the_version_report(
    session: Session, law: ExpertRow, version: VersionRow
) -> None:
    with pytest.raises(RefusedError, match="no ready expert of yours") as caught:
        benchmarks.report(session, "code-owner", 1, results_of(1))
    assert caught.value.kind is ProblemType.FORBIDDEN
    withdraw_expert(session, law, serve=True)
    with pytest.raises(RefusedError, match="no ready expert of yours"):
        benchmarks.report(session, "law-owner", 1, results_of(1))
    assert session.scalars(select(BenchmarkRow)).all() == []


def test_results_are_of_a_served_version_and_of_this_one(session: Session, version: VersionRow) -> None:
    with pytest.raises(RefusedError, match="results of version 2, sent to 1") as caught:
        benchmarks.report(session, None, 1, results_of(2))
    assert caught.value.where == "number"
    with pytest.raises(RefusedError, match="no version 9"):
        benchmarks.report(session, None, 9, results_of(9))
    first = benchmarks.report(session, None, 1, results_of(1))
    for field in ("withheld", "retired"):
        setattr(version, field, now(session))
        with pytest.raises(RefusedError, match=field):
            benchmarks.report(session, None, 1, results_of(1, result(value=0.9)))
    assert benchmarks.report(session, None, 1, results_of(1)) == first, "it came before"


def test_a_reporter_has_a_limited_number_of_results(
    session: Session, version: VersionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks, "MOST_ROWS", 3)
    benchmarks.report(session, "law-owner", 1, results_of(1, result("a"), result("b")))
    with pytest.raises(RefusedError, match="you have reported 2 results of version 1; at most 3") as caught:
        benchmarks.report(session, "law-owner", 1, results_of(1, result("a", 0.1), result("b", 0.1)))
    assert (caught.value.kind, caught.value.where) == (ProblemType.OVER_QUOTA, "results")
    benchmarks.report(session, "art-owner", 1, results_of(1, result("a"), result("b")))
