"""Law 5: what is withdrawn is in nothing that is made later, and purged it leaves no file that nothing else needs."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import experts, versions, withdrawal
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage import messages
from moerge_coordinator.storage.references import needed
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, ExpertRow, HoldingRow, ShardRow
from moerge_proto.experts import ExpertState
from moerge_proto.versions import NewVersion
from support.rows import add_body, add_contribution, add_expert, add_version, file_of


@pytest.fixture
def law(session: Session) -> ExpertRow:
    return add_expert(session, "law")


@pytest.fixture
def art(session: Session) -> ExpertRow:
    return add_expert(session, "art")


@pytest.fixture
def body(session: Session, law: ExpertRow, art: ExpertRow) -> BodyRow:
    body = session.scalars(select(BodyRow)).one()
    for expert in (law, art):
        part = add_contribution(session, expert, body)
        session.add(ShardRow(body=body.digest, domain=expert.domain, shard="1" * 64, contribution=part.digest))
    session.flush()
    return body


def test_law_5_a_withdrawn_expert_is_in_no_later_version(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    heads = [add_contribution(session, item, None) for item in (law, art)]
    row = add_version(session)
    assert row.lineage.head.contributions == [item.digest for item in heads]
    assert withdrawal.withdraw_expert(session, law, serve=True) == [row]
    assert (law.state, row.withheld, row.retired) == (ExpertState.WITHDRAWN, None, None)
    assert messages.versions(session)(row).contains_withdrawn == [law.digest]
    lineage = versions.lineage_of(session, NewVersion())
    assert (lineage.body, lineage.domains, lineage.experts) == (body.digest, ["art"], [art.digest])
    assert (lineage.head.method, lineage.head.contributions) == ("regmean", [heads[1].digest])
    assert session.scalars(select(ShardRow.domain)).all() == ["art"], "its shards are free"
    withdrawal.withdraw_expert(session, law, serve=False)
    assert row.withheld is not None
    with pytest.raises(RefusedError, match="was withdrawn meanwhile"):
        withdrawal.require_usable(session, row.lineage.experts, [])


def test_version_with_a_withdrawn_head_contribution_stays(session: Session, law: ExpertRow, body: BodyRow) -> None:
    for expert in session.scalars(select(ExpertRow)).all():
        add_contribution(session, expert, None)
    row = add_version(session)
    [sent] = session.scalars(select(ContributionRow).where(ContributionRow.digest == row.lineage.head.contributions[0]))
    withdrawal.require_inputs(session, row.lineage)
    withdrawal.withdraw_contribution(session, sent)
    assert (row.retired, row.withheld) == (None, None)
    assert versions.lineage_of(session, NewVersion()).head.method == "average"
    with pytest.raises(RefusedError, match=f"{sent.digest} was withdrawn meanwhile"):
        withdrawal.require_inputs(session, row.lineage)


def test_experts_for_another_body_stay(session: Session, law: ExpertRow, body: BodyRow) -> None:
    row = add_version(session)
    other = add_expert(session, "law", add_body(session, "other"))
    assert withdrawal.withdraw_expert(session, other, serve=False) == []
    assert (law.state, row.withheld) == (ExpertState.READY, None)


def test_a_refused_expert_is_nowhere_to_be_withdrawn_from(session: Session, law: ExpertRow) -> None:
    law.state = ExpertState.REFUSED
    with pytest.raises(RefusedError, match="can't be withdrawn"):
        withdrawal.withdraw_expert(session, law, serve=True)


def test_purge_keeps_shared_files(session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow) -> None:
    shared, private = file_of("config", "config.json"), file_of("only law's")
    law.files, art.files = [shared, private], [shared]
    for file in (shared, private):
        session.add(HoldingRow(owner=law.owner, sha256=file.sha256, size=file.size))
    row = add_version(session)
    with pytest.raises(RefusedError, match="first withdraw it"):
        experts.purge(session, law, retire=False)
    withdrawal.withdraw_expert(session, law, serve=True)
    assert experts.purge(session, law, retire=False) == ([law.digest], [1], [])
    assert row.retired is None
    assert experts.purge(session, law, retire=True) == ([law.digest], [1], ["1"])
    assert row.retired is not None
    left = needed(session)
    assert shared.sha256 in left, "art's expert has it too"
    assert private.sha256 not in left
    assert session.scalars(select(ContributionRow.digest).where(ContributionRow.purged.is_(None))).all()
