"""Law 5: what is withdrawn is in nothing that is made later, and purged it leaves no file that nothing else needs."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import bodies, experts, versions, withdrawal
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
    body = add_body(session, [law, art])
    for expert in (law, art):
        part = add_contribution(session, expert, body)
        session.add(ShardRow(body=body.digest, domain=expert.domain, shard="1" * 64, contribution=part.digest))
    session.flush()
    return body


def test_law_5_a_withdrawn_expert_is_in_no_later_version(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    row = add_version(session)
    retired, served = withdrawal.withdraw_expert(session, law, serve=True)
    assert ([item.digest for item in retired], [item.number for item in served]) == ([body.digest], [1])
    assert (law.state, body.retired is not None, row.withheld) == (ExpertState.WITHDRAWN, True, None)
    lineage = versions.lineage_of(session, NewVersion())
    assert (lineage.domains, lineage.withdrawn) == (["art"], [law.digest])
    assert session.scalars(select(ShardRow.domain)).all() == ["art"], "its shards are free"
    withdrawal.withdraw_expert(session, law, serve=False)
    assert row.withheld is not None
    with pytest.raises(RefusedError, match="was withdrawn meanwhile"):
        withdrawal.require_usable(session, row.lineage.experts, [])
    with pytest.raises(RefusedError, match="withdrawn meanwhile"):
        withdrawal.require_listed(session, row.lineage)


def test_parts_are_withdrawn_with_their_dense_expert(session: Session, law: ExpertRow, body: BodyRow) -> None:
    parts = add_expert(session, "law", parts=(law.digest, body.digest))
    sent = add_contribution(session, parts, body)
    withdrawal.withdraw_expert(session, law, serve=True)
    assert (parts.state, sent.active) == (ExpertState.WITHDRAWN, False)


def test_another_domains_expert_withdraws_no_parts(session: Session, law: ExpertRow) -> None:
    """Under a seed's body, parts may name a dense expert that another owner registers later."""
    seed = add_body(session, [], method="seed", source="seed")
    parts = add_expert(session, "art", parts=(law.digest, seed.digest))
    add_contribution(session, parts, seed)
    row = add_version(session)
    assert withdrawal.withdraw_expert(session, law, serve=False) == ([], [])
    assert experts.purge(session, law, retire=False) == ([law.digest], [])
    assert (parts.state, row.withheld) == (ExpertState.READY, None)


def test_leaver_under_a_seed_body_leaves_no_trace(session: Session) -> None:
    """Law 5: at once, without a remerge; versions that have it stay, and say so."""
    seed = add_body(session, [], method="seed", source="seed")
    members = [add_expert(session, domain, parts=("0" * 64, seed.digest)) for domain in ("law", "art")]
    heads = [add_contribution(session, item, None, kind="head") for item in members]
    routers = [add_contribution(session, item, seed) for item in members]
    row = add_version(session)
    assert row.lineage.head.contributions == [item.digest for item in heads]
    retired, served = withdrawal.withdraw_expert(session, members[0], serve=True)
    assert (retired, [item.number for item in served], bodies.remerge(session)) == ([], [1], None)
    lineage = versions.lineage_of(session, NewVersion())
    assert (lineage.body, lineage.experts, lineage.withdrawn) == (seed.digest, [members[1].digest], [])
    assert lineage.contributions == [routers[1].digest]
    assert (lineage.head.method, lineage.head.contributions) == ("regmean", [heads[1].digest])
    assert experts.purge(session, members[0], retire=False) == ([members[0].digest], [1])
    assert (seed.retired, row.retired) == (None, None)


def test_version_with_a_withdrawn_head_contribution_stays(session: Session, law: ExpertRow, body: BodyRow) -> None:
    for expert in session.scalars(select(ExpertRow)).all():
        add_contribution(session, expert, None, kind="head")
    row = add_version(session)
    [sent] = session.scalars(select(ContributionRow).where(ContributionRow.digest == row.lineage.head.contributions[0]))
    withdrawal.require_inputs(session, row.lineage)
    withdrawal.withdraw_contribution(session, sent)
    assert (row.retired, row.withheld, body.retired) == (None, None, None)
    assert versions.lineage_of(session, NewVersion()).head.method == "average"
    with pytest.raises(RefusedError, match=f"{sent.digest} was withdrawn meanwhile"):
        withdrawal.require_inputs(session, row.lineage)


def test_purge_covers_parts_of_it_and_for_its_bodies(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    """Art's are for the body with law in it."""
    laws, arts = (add_expert(session, item.domain, parts=(item.digest, body.digest)) for item in (law, art))
    for plain in session.scalars(select(ContributionRow)):
        plain.active = False  # superseded
    for parts in (laws, arts):
        add_contribution(session, parts, body)
    row = add_version(session)
    withdrawal.withdraw_expert(session, law, serve=False)
    assert (laws.state, arts.state) == (ExpertState.WITHDRAWN, ExpertState.READY)
    assert row.withheld is not None
    assert messages.versions(session)(row).contains_withdrawn == [laws.digest, law.digest]
    remerge = bodies.remerge(session)
    assert remerge is not None
    assert remerge.experts == [art.digest]
    kept = add_expert(session, "art", parts=(art.digest, add_body(session, [art]).digest))
    experts.purge(session, law, retire=True)
    assert [item.purged is not None for item in (law, laws, arts, art, kept)] == [True, True, True, False, False]
    assert needed(session).isdisjoint(file.sha256 for item in (law, laws, arts) for file in item.files)


def test_withdrawn_parts_allow_the_dense_contribution(session: Session, law: ExpertRow, body: BodyRow) -> None:
    [plain] = session.scalars(select(ContributionRow).where(ContributionRow.expert == law.digest))
    plain.active = False  # superseded
    parts = add_expert(session, "law", parts=(law.digest, body.digest))
    assert withdrawal.withdraw_expert(session, parts, serve=True) == ([], []), "no body contains it"
    assert bodies.remerge(session) is None
    assert plain.withdrawn is not None, "so the same statistics may be sent again"
    assert (law.state, body.retired) == (ExpertState.READY, None)


def test_body_with_a_withdrawn_contribution_is_retired(session: Session, law: ExpertRow, art: ExpertRow) -> None:
    sent = [add_contribution(session, item, None) for item in (law, art)]
    solved = add_body(session, [law, art], method="regmean", contributions=[item.digest for item in sent])
    withdrawal.withdraw_contribution(session, sent[0])
    assert (sent[0].active, solved.retired is not None) == (False, True)


def test_a_refused_expert_is_nowhere_to_be_withdrawn_from(session: Session, law: ExpertRow) -> None:
    law.state = ExpertState.REFUSED
    with pytest.raises(RefusedError, match="can't be withdrawn"):
        withdrawal.withdraw_expert(session, law, serve=True)


def test_purge_requires_a_remerge_and_keeps_shared_files(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    shared, private = file_of("config", "config.json"), file_of("only law's")
    law.files, art.files = [shared, private], [shared]
    for file in (shared, private):
        session.add(HoldingRow(owner=law.owner, sha256=file.sha256, size=file.size))
    row = add_version(session)
    with pytest.raises(RefusedError, match="first withdraw it"):
        experts.purge(session, law, retire=False)
    withdrawal.withdraw_expert(session, law, serve=True)
    with pytest.raises(RefusedError, match="wait for the remerge"):
        experts.purge(session, law, retire=False)
    add_body(session, [art])
    assert experts.purge(session, law, retire=True) == ([law.digest], [1])
    assert row.retired is not None
    left = needed(session)
    assert shared.sha256 in left, "art's expert has it too"
    assert private.sha256 not in left
    assert session.scalars(select(ContributionRow.digest).where(ContributionRow.purged.is_(None))).all()
