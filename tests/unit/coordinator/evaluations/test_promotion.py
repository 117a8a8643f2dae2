"""The promotion's use of scores: champion moves only to versions that are not much worse on a domain or task."""

import math
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import aliases
from moerge_coordinator.evaluations import scores
from moerge_coordinator.evaluations.promotion import compared
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import AliasMoveRow
from moerge_proto.evaluations import Perplexity, TaskResult
from moerge_proto.owners import Identity, Role
from moerge_proto.versions import CHAMPION, Move
from support.evaluations import evaluation, result, sums
from support.rows import add_body, add_contribution, add_expert, add_version, dense_of

MOST, RULE = Settings(home=Path("unused")), [compared]


@pytest.fixture(autouse=True)
def versions(session: Session) -> None:
    """Versions 1 to 3 of law and art, which differ by lambda."""
    experts = [add_expert(session, domain) for domain in ("law", "art")]
    body = add_body(session)
    for expert in experts:
        add_contribution(session, expert, body)
    for value in (1.0, 2.0, 3.0):
        add_version(session, options={"ridge_lambda": value})


def promote(session: Session, version: int, name: str = CHAMPION, **how: str) -> int:
    move = Move.model_validate({"version": version, **how})
    return aliases.promote(session, name, move, "operator, token 1", MOST, RULE).version


def send(session: Session, version: int, who: str | None, *reported: Perplexity | TaskResult) -> None:
    role = Role.OPERATOR if who is None else Role.OWNER
    caller = Identity(role=role, owner=who and f"{who}-owner", domains=[who] if who else [])
    scores.evaluate(session, caller, version, evaluation(version, *reported))


def evaluate(session: Session, version: int, domain: str, points: float) -> None:
    """An evaluation by which a domain has so many normalised points."""
    nll = 20 - 10 * math.log(points / 100)
    send(session, version, domain, sums(dense_of(domain), nll, domain))


def test_champion_doesn_t_move_to_a_version_that_is_worse_on_a_domain_or_a_task(session: Session) -> None:
    """The standard error of each task's difference is 5, so a fall by 15 is allowed; of a domain, one by 2 points."""
    for number, law, error, accuracy, loss in (
        (1, 99.0, 3.0, 60.0, 20.0), (2, 97.1, 4.0, 45.0, 35.0), (3, 96.9, 4.0, 44.9, 10.0),
    ):  # fmt: skip
        evaluate(session, number, "law", law)
        send(session, number, None, result(value=accuracy, error=error))
        send(session, number, "law", result("lambada", loss, error, higher_is_better=False))
    promote(session, 1)
    assert not aliases.check(session, 2, MOST, RULE).falls
    falls = [
        "law, reported by law-owner, from 99 to 96.9",
        "arc_easy (acc), reported by operator, from 60.0 ± 3.0 to 44.9 ± 4.0",
    ]
    assert aliases.check(session, 3, MOST, RULE).falls == falls
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


def test_scores_that_can_t_be_compared_only_cause_warnings(session: Session) -> None:
    evaluate(session, 1, "law", 99.0)
    evaluate(session, 2, "art", 10.0)
    send(session, 1, None, result("a", 0.9), result("b", 0.9), result("c", 0.9, None), result("e"), result("f"))
    send(session, 1, "law", result("d", 0.9))
    send(session, 2, None, result("a", 0.1, seed=1), result("c", 0.1, None))
    send(session, 2, "art", result("d", 0.1))
    moved = [aliases.promote(session, CHAMPION, Move(version=number), "operator", MOST, RULE) for number in (1, 2)]
    first = "version 1 has no score to compare on art"
    second = "version 2 has no score to compare on law, a (acc), b (acc), c (acc), e (acc) and 2 others"
    assert [item.warnings for item in moved] == [[first], [first, second]]
    assert aliases.check(session, 2, MOST, RULE).warnings == [], "it is the champion"
