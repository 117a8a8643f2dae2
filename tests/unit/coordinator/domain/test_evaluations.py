"""Evaluations: of a served version, its domain, expert and shape; the last one of a domain counts."""

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import evaluations
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import version_table
from moerge_coordinator.storage.tables import EvaluationRow, ExpertRow, VersionRow, now
from moerge_proto.evaluations import Evaluation, NewEvaluation
from moerge_proto.problems import ProblemType
from support.rows import add_body, add_contribution, add_expert, add_version, dense_of


@pytest.fixture
def law(session: Session) -> ExpertRow:
    return add_expert(session, "law")


@pytest.fixture
def version(session: Session, law: ExpertRow) -> VersionRow:
    """Version 1 of law and art; its body has two layers."""
    body = add_body(session)
    for expert in (law, add_expert(session, "art")):
        add_contribution(session, expert, body)
    return add_version(session)


def sums(law: ExpertRow, nll: float = 25.0, **change: Any) -> NewEvaluation:
    sent = {
        "number": 1, "domain": "law", "expert": law.parts_of, "documents": 2, "context": 8, "stride": 4,
        "dense": {"nll": 20.0, "tokens": 10}, "version": {"nll": nll, "tokens": 10},
        "oracle": {"nll": 21.0, "tokens": 10}, "routed": [[9, 1], [5, 5]],
    }  # fmt: skip
    return NewEvaluation.model_validate(sent | change)


def evaluate(session: Session, new: NewEvaluation, number: int = 1) -> Evaluation:
    return evaluations.evaluate(session, f"{new.domain}-owner", number, new)


def test_what_can_t_be_of_this_version_is_refused_by_its_field(
    session: Session, law: ExpertRow, version: VersionRow
) -> None:
    parts = version.lineage.experts[0]
    for field, change in (
        ("number", {"number": 2}),
        ("domain", {"domain": "code"}),
        ("expert", {"expert": "0" * 64}),
        ("expert", {"expert": parts}),
        ("routed", {"routed": [[9, 1]]}),
        ("routed", {"routed": [[9, 1], [5, 5], [5, 5]]}),
        ("routed", {"routed": [[8, 1, 1], [5, 5, 0]]}),
        ("routed", {"routed": [[9, 1], [10]]}),
    ):
        with pytest.raises(RefusedError) as caught:
            evaluate(session, sums(law, **change))
        assert (caught.value.kind, caught.value.where) == (ProblemType.INVALID_REQUEST, field), change
    assert session.scalars(select(EvaluationRow)).all() == []


def test_a_version_that_is_not_served_is_not_evaluated(session: Session, law: ExpertRow, version: VersionRow) -> None:
    with pytest.raises(RefusedError, match="no version 99"):
        evaluate(session, sums(law, number=99), 99)
    first = evaluate(session, sums(law))
    for field in ("withheld", "retired"):
        setattr(version, field, now(session))
        with pytest.raises(RefusedError, match=field):
            evaluate(session, sums(law, 30.0))
    assert evaluate(session, sums(law)) == first, "it came before"


def test_average_leaves_out_an_expert_that_is_the_body_s_seed(session: Session, version: VersionRow) -> None:
    assert version_table(session, version).averaged == ["law", "art"]
    session.scalars(select(ExpertRow).where(ExpertRow.domain == "art")).one().parts_of = add_body(session).model
    table = version_table(session, version)
    assert (table.seeds, table.averaged, table.missing) == (["art"], ["law"], ["law"])


def test_repeated_evaluation_is_idempotent_and_newer_replaces(
    session: Session, law: ExpertRow, version: VersionRow
) -> None:
    first = evaluate(session, sums(law))
    assert (first.owner, first.version, first.active) == ("law-owner", 1, True)
    assert evaluate(session, sums(law)) == first
    art = evaluate(session, sums(law, 20.0, domain="art", expert=dense_of("art")))
    assert evaluate(session, sums(law, 30.0)).number > first.number
    late = evaluate(session, sums(law))
    assert late == first.model_copy(update={"active": False})
    rows = session.scalars(select(EvaluationRow).order_by(EvaluationRow.number)).all()
    assert [(row.domain, row.active) for row in rows] == [("law", False), ("art", True), ("law", True)]
    table = version_table(session, version)
    assert [score.normalised for score in table.scores] == [pytest.approx(36.787944), 100]
    withdraw_expert(session, law, serve=True)
    assert art.active
    assert [score.domain for score in version_table(session, version).scores] == ["law", "art"], "what was told stays"
