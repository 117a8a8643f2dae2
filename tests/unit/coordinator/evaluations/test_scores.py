"""Evaluations: of a served version, by owners and operators; the last score of a reporter and name counts."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.evaluations import scores
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import EvaluationRow, ExpertRow, VersionRow, now
from moerge_proto.evaluations import Evaluation, Perplexity, TaskResult
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType
from support.evaluations import evaluation, result, sums
from support.rows import add_body, add_contribution, add_expert, add_version, dense_of

OPERATOR = Identity(role=Role.OPERATOR, owner=None, domains=[])
LAW, ART, CODE = (Identity(role=Role.OWNER, owner=f"{name}-owner", domains=[name]) for name in ("law", "art", "code"))


@pytest.fixture
def law(session: Session) -> ExpertRow:
    return add_expert(session, "law")


@pytest.fixture
def version(session: Session, law: ExpertRow) -> VersionRow:
    """Version 1 of law and art; its body has two layers. code has an expert, and isn't in it."""
    body = add_body(session)
    for expert in (law, add_expert(session, "art")):
        add_contribution(session, expert, body)
    add_expert(session, "code")
    return add_version(session)


def send(session: Session, who: Identity, *reported: Perplexity | TaskResult) -> list[Evaluation]:
    return scores.evaluate(session, who, 1, evaluation(1, *reported))


def test_sums_that_can_t_be_of_this_version_are_refused_by_their_field(
    session: Session, law: ExpertRow, version: VersionRow
) -> None:
    expert, parts = law.parts_of, version.lineage.experts[0]
    for field, who, score in (
        ("domain", CODE, sums(expert, domain="code")),
        ("expert", LAW, sums("0" * 64)),
        ("expert", LAW, sums(parts)),
        ("routed", LAW, sums(expert, routed=[[9, 1]])),
        ("routed", LAW, sums(expert, routed=[[9, 1], [5, 5], [5, 5]])),
        ("routed", LAW, sums(expert, routed=[[8, 1, 1], [5, 5, 0]])),
        ("routed", LAW, sums(expert, routed=[[9, 1], [10]])),
    ):
        with pytest.raises(RefusedError) as caught:
            send(session, who, score)
        assert (caught.value.kind, caught.value.where) == (ProblemType.INVALID_REQUEST, field), score
    for who, told in ((ART, "does not belong to owner 'art-owner'"), (OPERATOR, "no owner")):
        with pytest.raises(RefusedError, match=told):
            send(session, who, sums(expert))
    assert session.scalars(select(EvaluationRow)).all() == []


def test_only_owners_with_a_ready_expert_in_the_version_report_tasks(
    session: Session, law: ExpertRow, version: VersionRow
) -> None:
    withdraw_expert(session, law, serve=True)
    for who in (CODE, LAW):
        with pytest.raises(RefusedError, match="no ready expert of yours") as caught:
            send(session, who, result())
        assert caught.value.kind is ProblemType.FORBIDDEN
    assert session.scalars(select(EvaluationRow)).all() == []


def test_scores_are_of_a_served_version_and_of_this_one(session: Session, law: ExpertRow, version: VersionRow) -> None:
    with pytest.raises(RefusedError, match="made of version 2, sent to 1") as caught:
        scores.evaluate(session, LAW, 1, evaluation(2, sums(law.parts_of)))
    assert caught.value.where == "number"
    with pytest.raises(RefusedError, match="no version 9"):
        scores.evaluate(session, OPERATOR, 9, evaluation(9))
    first = send(session, LAW, sums(law.parts_of))
    for field in ("withheld", "retired"):
        setattr(version, field, now(session))
        with pytest.raises(RefusedError, match=field):
            send(session, LAW, sums(law.parts_of, 30.0))
    assert send(session, LAW, sums(law.parts_of)) == first, "it came before"


def test_average_leaves_out_an_expert_that_is_the_body_s_seed(session: Session, version: VersionRow) -> None:
    assert scores.visible_table(session, version, None).averaged == ["law", "art"]
    session.scalars(select(ExpertRow).where(ExpertRow.domain == "art")).one().parts_of = add_body(session).model
    table = scores.visible_table(session, version, None)
    assert (table.seeds, table.averaged, table.missing) == (["art"], ["law"], ["law"])


def test_a_later_score_replaces_the_same_reporter_s_and_a_repeated_one_changes_nothing(
    session: Session, law: ExpertRow, version: VersionRow
) -> None:
    art = sums(dense_of("art"), 20.0, "art")
    tasks = result("arc_easy"), result("gsm8k", 0.1)
    first = send(session, LAW, sums(law.parts_of))
    assert [(row.owner, row.version, row.active) for row in first] == [("law-owner", 1, True)]
    for who, given in ((ART, (art,)), (OPERATOR, tasks), (LAW, tasks)):
        assert send(session, who, *given) == send(session, who, *given)
    send(session, LAW, sums(law.parts_of, 30.0))
    send(session, OPERATOR, result("arc_easy", 0.6))
    assert send(session, LAW, sums(law.parts_of)) == [first[0].model_copy(update={"active": False})]
    assert [row.active for row in send(session, OPERATOR, *tasks)] == [False, True], "they came before"
    assert [(row.reporter, row.score.name) for row in scores.active(session, version)] == [
        ("art-owner", "art"), ("operator", "gsm8k (acc)"), ("law-owner", "arc_easy (acc)"),
        ("law-owner", "gsm8k (acc)"), ("law-owner", "law"), ("operator", "arc_easy (acc)"),
    ]  # fmt: skip
    assert {row.reporter for row in scores.active(session, version, "art-owner")} == {"art-owner", "operator"}
    withdraw_expert(session, law, serve=True)
    table = {score.domain: score.normalised for score in scores.visible_table(session, version, None).scores}
    assert table == {"law": pytest.approx(36.787944), "art": 100}, "what was told stays"


def test_a_reporter_has_a_limited_number_of_scores(
    session: Session, version: VersionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "MOST_ROWS", 3)
    send(session, LAW, result("a"), result("b"))
    with pytest.raises(RefusedError, match="you have reported 2 scores of version 1; at most 3") as caught:
        send(session, LAW, result("a", 0.1), result("b", 0.1))
    assert (caught.value.kind, caught.value.where) == (ProblemType.OVER_QUOTA, "scores")
    send(session, ART, result("a"), result("b"))
