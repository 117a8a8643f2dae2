"""A version's loss on public texts is compared with the lower of the seed's and the last version's."""

from math import nan

import pytest
from sqlalchemy.orm import Session

from moerge_coordinator.domain.public_loss import compared, last_of, refusal
from moerge_coordinator.storage.tables import ExpertRow, VersionRow
from moerge_proto.versions import PublicLoss
from support.rows import add_body, add_contribution, add_expert, add_version

SEED = 3.0


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
    for loss, expected in ((highest, True), (highest + 0.01, False), (nan, False)):
        made, is_within = compared(loss, SEED, last_of(session, row.lineage), row.lineage, 0.5)
        assert (made.seed, made.last, is_within) == (SEED, last, expected)


def test_an_accepted_level_stays_accepted(session: Session) -> None:
    """The operator isn't asked again for what an earlier version had."""
    row = add(session, joined(session, "law"), loss=5.0, accepted=True)
    for _ in range(3):
        row.public_loss, is_within = compared(5.0, SEED, row, row.lineage, 0.5)
        assert is_within
    row.public_loss, _ = compared(3.25, SEED, row, row.lineage, 0.5)
    assert not row.public_loss.accepted
    assert not compared(5.0, SEED, row, row.lineage, 0.5)[1], "the level has fallen meanwhile"


def test_a_version_whose_domain_left_is_not_compared(session: Session) -> None:
    law, art = joined(session, "law"), joined(session, "art")
    both, one = add(session, law, art, loss=1.0), add(session, law, loss=None)
    assert compared(3.25, SEED, both, one.lineage, 0.5) == (PublicLoss(version=3.25, seed=SEED), True)
    assert not compared(3.25, SEED, both, both.lineage, 0.5)[1]


def test_the_last_version_of_the_same_seed_counts(session: Session) -> None:
    first = add(session, joined(session, "law"), loss=2.0)
    other = add(session, joined(session, "law", "other"), loss=1.0)
    assert last_of(session, first.lineage) is first
    assert last_of(session, other.lineage) is other


def test_a_refusal_names_the_expert_without_which_the_loss_is_lowest(session: Session) -> None:
    row = add(session, joined(session, "law"), joined(session, "art"), loss=None)
    loss = PublicLoss(version=4, seed=SEED)
    told = refusal(session, loss, 0.3, row.lineage, [4.1, 3.1])
    assert "4.000 nats per token, the seed's 3.000; it may be 0.3 above" in told.what
    assert "Without the expert of art (owner art-owner) it is 3.100" in told.what
    assert "moerge expert withdraw art" in told.todo
    for without in ([], [4.1, 4.2]):
        told = refusal(session, loss, 0.3, row.lineage, without)
        assert "Without" not in told.what
        assert "--accept-loss" in told.todo
