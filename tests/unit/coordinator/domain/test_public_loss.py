"""A version's loss on public texts is compared with the lower of the seed's and the last version's."""

from collections.abc import Sequence
from itertools import count

import pytest
from sqlalchemy.orm import Session

from moerge_coordinator.domain.public_loss import compared, measured_before, refusal
from moerge_coordinator.storage.tables import ExpertRow, VersionRow
from moerge_proto.versions import PublicLoss
from support.rows import add_body, add_contribution, add_expert, add_version

SEED = 3.0
NUMBERS = count(1)


def add(session: Session, *experts: ExpertRow, loss: float | None, accepted: bool = False) -> VersionRow:
    """A version whose loss was measured, or not."""
    row = add_version(session, experts=[expert.digest for expert in experts])
    row.public_loss = None if loss is None else PublicLoss(version=loss, seed=SEED, accepted=accepted)
    session.flush()
    return row


def joined(session: Session, domain: str, seed: str = "seed") -> ExpertRow:
    body = add_body(session, seed)
    expert = add_expert(session, domain, body)
    add_contribution(session, expert, body)
    return expert


@pytest.mark.parametrize(
    ("last", "accepted", "highest"),
    [(None, False, 3.5), (3.25, False, 3.5), (2.75, False, 3.25), (4.0, True, 4.5), (2.75, True, 3.25)],
    ids=["first", "last above the seed", "last below the seed", "accepted", "accepted below the seed"],
)
def test_the_lower_of_both_counts_unless_the_last_was_accepted(
    session: Session, last: float | None, accepted: bool, highest: float
) -> None:
    row = add(session, joined(session, "law"), loss=last, accepted=accepted)
    made, most = compared(3.0, SEED, measured_before(session, row.lineage), row.lineage, 0.5)
    assert (made.seed, made.last, most) == (SEED, last, highest)


def require(session: Session, experts: Sequence[ExpertRow], outcomes: Sequence[tuple[float, str]]) -> None:
    """Publishes a version with each loss, unless it is refused; one that the operator accepts doesn't pass alone."""
    for loss, outcome in outcomes:
        row = add_version(session, experts=[item.digest for item in experts], options={"ridge_lambda": next(NUMBERS)})
        made, most = compared(loss, SEED, measured_before(session, row.lineage), row.lineage, 0.3)
        assert (loss <= most) == (outcome == "passes"), (loss, outcome)
        if outcome != "refused":
            row.public_loss = made.model_copy(update={"accepted": True}) if outcome == "accepted" else made
            session.flush()


@pytest.mark.parametrize(
    "outcomes",
    [
        [(3.5, "accepted"), (3.8, "passes"), (4.1, "refused"), (4.4, "refused"), (3.8, "passes"), (3.81, "refused")],
        [(4.0, "accepted"), (4.0, "passes"), (3.6, "passes"), (3.9, "passes"), (4.0, "refused")],
        [(3.5, "accepted"), (4.5, "accepted"), (4.5, "passes"), (4.8, "passes"), (4.2, "passes"), (4.6, "refused")],
        [(3.5, "accepted"), (3.2, "passes"), (3.5, "refused")],
    ],
    ids=["a ceiling", "it falls with the loss", "accepted again", "back at the seed's"],
)
def test_an_accepted_loss_is_a_ceiling(session: Session, outcomes: Sequence[tuple[float, str]]) -> None:
    """Each version was compared with the one before, so several small rises passed without the operator's word."""
    require(session, [joined(session, "law")], outcomes)


def test_what_was_accepted_with_a_domain_does_not_count_without_it(session: Session) -> None:
    law, art = joined(session, "law"), joined(session, "art")
    require(session, [law, art], [(4.0, "accepted"), (4.0, "passes")])
    require(session, [law], [(4.0, "refused"), (4.2, "accepted"), (4.5, "passes")])
    require(session, [law, art], [(4.6, "refused"), (4.5, "passes")])


def test_a_version_whose_domain_left_is_not_compared(session: Session) -> None:
    law, art = joined(session, "law"), joined(session, "art")
    both, one = add(session, law, art, loss=1.0).lineage, add(session, law, loss=None).lineage
    earlier = measured_before(session, both)
    assert compared(3.25, SEED, earlier, one, 0.5) == (PublicLoss(version=3.25, seed=SEED), 3.5)
    assert compared(3.25, SEED, earlier, both, 0.5)[1] == 1.5


def test_the_versions_of_the_same_seed_count(session: Session) -> None:
    first = add(session, joined(session, "law"), loss=2.0).lineage
    other = add(session, joined(session, "law", "other"), loss=1.0).lineage
    assert [made for made, _ in measured_before(session, first)] == [first]
    assert [made for made, _ in measured_before(session, other)] == [other]


def test_a_refusal_names_the_expert_without_which_the_loss_is_within_the_limit(session: Session) -> None:
    lineage = add(session, joined(session, "law"), joined(session, "art"), loss=None).lineage
    loss = PublicLoss(version=4, seed=SEED)
    told = refusal(session, loss, 3.3, lineage, [3.2, 3.1])
    assert "4.000 nats per token, the seed's 3.000; it may be 3.300" in told.what
    assert "Without the expert of art (owner art-owner) it is 3.100" in told.what
    assert "moerge expert withdraw art" in told.todo


@pytest.mark.parametrize(
    ("head", "kept", "remedy"), [("average", False, True), ("average", True, False), ("seed", False, False)]
)
def test_a_refusal_names_nobody_whose_mlps_do_not_explain_it(
    session: Session, head: str, kept: bool, remedy: bool
) -> None:
    experts = [joined(session, domain) for domain in ("law", "art")]
    for expert in experts:
        expert.own_head = not kept
    lineage = add_version(session, experts=[expert.digest for expert in experts], head=head).lineage
    for without in ([], [3.31, 3.4]):
        told = refusal(session, PublicLoss(version=4, seed=SEED), 3.3, lineage, without)
        assert "Without" not in told.what
        assert ("No single expert's MLPs explain it" in told.what) == bool(without)
        assert ("--head seed" in told.todo) == remedy
        assert "ask the owners; or publish it with `accept_loss`" in told.todo
