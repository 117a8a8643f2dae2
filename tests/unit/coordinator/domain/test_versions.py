"""Versions: which experts and contributions, their numbers, and who may have their files."""

from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.bodies.head_kinds import HEADS
from moerge_coordinator.domain import aliases, cards, contributors, versions
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import BodyRow, ComposedRow, ExpertRow, VersionRow
from moerge_proto.experts import ExpertState
from moerge_proto.problems import ProblemType
from moerge_proto.versions import HeadLineage, Lineage, Move, NewVersion
from support.rows import add_body, add_contribution, add_expert, add_version


@pytest.fixture
def law(session: Session) -> ExpertRow:
    return add_expert(session, "law")


@pytest.fixture
def art(session: Session) -> ExpertRow:
    return add_expert(session, "art", redistribute=True)


@pytest.fixture
def body(session: Session, law: ExpertRow, art: ExpertRow) -> BodyRow:
    return session.scalars(select(BodyRow)).one()


def lineage_of(session: Session, **new: object) -> Lineage:
    return versions.lineage_of(session, NewVersion.model_validate(new))


def test_version_lists_contributors_in_registration_order(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    with pytest.raises(RefusedError, match="no expert has contributed yet"):
        lineage_of(session, partial=True)
    late = add_contribution(session, art, body)
    add_contribution(session, law, body, split="tuning")
    assert lineage_of(session, partial=True).domains == ["art"], "a tuning split alone is no contribution"
    early = add_contribution(session, law, body)
    add_contribution(session, law, body, active=False)
    lineage = lineage_of(session)
    assert (lineage.domains, lineage.contributions) == (["law", "art"], sorted([early.digest, late.digest]))
    assert lineage_of(session, experts=[art.digest, law.digest]).domains == ["art", "law"], "as requested"
    tuned = lineage_of(session, options={"lambda_scale": "auto"})
    assert len(tuned.contributions) == 3


def test_version_without_a_ready_expert_requires_partial(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    code = add_expert(session, "code")
    add_expert(session, "film", state=ExpertState.RECEIVED)
    for expert in (law, code):
        add_contribution(session, expert, body)
    with pytest.raises(RefusedError, match="with a ready expert have not contributed: art\n") as caught:
        lineage_of(session)
    assert (caught.value.kind, caught.value.where) == (ProblemType.NOT_READY, "partial")
    assert "--wait" in caught.value.todo
    assert "`partial`" in caught.value.todo
    result = contributors.of_body(session, body)
    assert (result.contributed, result.missing) == (["law", "code"], ["art"])
    partial = lineage_of(session, partial=True)
    assert (partial.domains, partial.left_out) == (["law", "code"], ["art"])
    named = lineage_of(session, experts=[law.digest])
    assert (named.domains, named.left_out) == (["law"], []), "the operator has named the experts"
    withdraw_expert(session, art, serve=True)
    without = lineage_of(session)
    assert (without.domains, without.left_out) == (["law", "code"], []), "a withdrawn expert is not waited for"


def test_an_older_body_waits_for_its_own_experts(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    for expert in (law, art):
        add_contribution(session, expert, body)
    new = add_expert(session, "law", add_body(session, "other"))
    with pytest.raises(RefusedError, match="not contributed: law\n"):
        lineage_of(session)
    assert lineage_of(session, body=body.digest).experts == [law.digest, art.digest]
    with pytest.raises(RefusedError) as caught:
        lineage_of(session, experts=[new.digest], body=body.digest)
    assert caught.value.todo == f"name the domain's contributed expert: {law.digest}"


def test_head_is_solved_if_every_expert_has_contributed(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    """From a head contribution under any body, because it belongs to the dense expert."""
    for expert in (art, law):
        add_contribution(session, expert, body)
    of_art = add_contribution(session, art, None)
    assert lineage_of(session).head == HeadLineage(method="average")
    with pytest.raises(RefusedError, match="no head contribution of law") as caught:
        lineage_of(session, head="regmean")
    assert (caught.value.kind, caught.value.where) == (ProblemType.NOT_READY, "head")
    assert lineage_of(session, head="regmean", experts=[art.digest]).head.contributions == [of_art.digest]
    assert lineage_of(session, head="seed").head == HeadLineage(method="seed")
    earlier = add_contribution(session, add_expert(session, "law", add_body(session, "other")), None)
    solved = lineage_of(session, body=body.digest)
    assert solved.head == HeadLineage(
        method="regmean", contributions=[earlier.digest, of_art.digest], revision=HEADS["regmean"].revision
    )
    mean = add_version(session, head="average", body=body.digest).lineage
    assert (mean.head.contributions, mean.contributions) == ([], solved.contributions)
    assert versions.published(session, solved) is None, "a new head makes a new version"


def test_head_contribution_of_another_domain_is_not_taken(session: Session, law: ExpertRow, body: BodyRow) -> None:
    """Parts may name any dense expert, which is with its owner."""
    thief = add_expert(session, "code", parts_of=law.parts_of)
    add_contribution(session, thief, body)
    add_contribution(session, law, None)
    assert lineage_of(session, partial=True).head.method == "average"


def test_a_class_with_one_expert_per_token_gets_no_more(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    for row in (law, art):
        add_contribution(session, row, body)
    assert lineage_of(session, options={"top_k": 2}).options.top_k == 2
    body.family = "lfm2"
    assert lineage_of(session).options.top_k == 1
    with pytest.raises(RefusedError, match="2 experts per token, but Lfm2MoeForCausalLM") as caught:
        lineage_of(session, options={"top_k": 2})
    assert caught.value.where == "options.top_k"
    body.family = "nemotron_h"
    assert lineage_of(session).options.top_k == 1
    with pytest.raises(RefusedError, match="NemotronHForCausalLM needs 2 experts"):
        lineage_of(session, experts=[law.digest])


def test_impossible_versions_are_refused(session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow) -> None:
    add_contribution(session, law, body)
    partial = {"partial": True}
    for new, reason, where in (
        ({"experts": [art.digest]}, "has no contribution under body", "experts"),
        ({"experts": [law.digest, law.digest]}, "named twice", "experts"),
        (partial | {"options": {"top_k": 2}}, "2 of 1 experts", "options.top_k"),
        (
            partial | {"options": {"domain_weights": {"art": 2.0}}},
            "art; the version's domains are law",
            "options.domain_weights",
        ),
        (partial | {"chat_template": "art"}, "no expert of art; the version's domains are law", "chat_template"),
        ({"body": "0" * 64}, "no body 000", "body"),
    ):
        with pytest.raises(RefusedError, match=reason) as caught:
            lineage_of(session, **new)
        assert caught.value.where == where


def test_lineage_has_one_number_and_retired_one_is_not_reused(session: Session, law: ExpertRow, body: BodyRow) -> None:
    add_contribution(session, law, body)
    row = add_version(session)
    assert versions.published(session, row.lineage) is row
    aliases.promote(session, "champion", Move(version=1), "operator", Settings(home=Path("unused")), ())
    with pytest.raises(RefusedError, match="the alias 'champion' points to version 1"):
        versions.retire(session, [row])
    aliases.remove(session, "champion", "operator")
    versions.retire(session, [row])
    assert versions.published(session, row.lineage) is None
    assert versions.next_number(session) == 2
    with pytest.raises(RefusedError, match="version 1 is retired"):
        versions.find_served(session, 1)


def test_owner_gets_version_files_if_all_others_allow_it(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    for expert in (law, art):
        add_contribution(session, expert, body)
    row = add_version(session)
    versions.require_shared(session, "law-owner", row)
    with pytest.raises(RefusedError, match="don't allow redistribution: law"):
        versions.require_shared(session, "art-owner", row)
    law.redistribute = True
    versions.require_shared(session, "art-owner", row)
    add_expert(session, "code")
    with pytest.raises(RefusedError, match="no ready expert of yours"):
        versions.require_shared(session, "code-owner", row)
    withdraw_expert(session, law, serve=True)
    with pytest.raises(RefusedError, match="contains withdrawn experts: law"):
        versions.require_shared(session, "art-owner", row)


def test_the_card_says_which_experts_were_withdrawn_since(
    session: Session, law: ExpertRow, art: ExpertRow, body: BodyRow
) -> None:
    for expert in (law, art):
        add_contribution(session, expert, body)
    row = add_version(session)
    assert cards.withdrawal_note(session, row) == ""
    withdraw_expert(session, law, serve=True)
    assert f"law (`{law.digest}`)" in cards.withdrawal_note(session, row)


@pytest.mark.usefixtures("law")
def test_no_part_of_a_version_that_was_retired_meanwhile_is_published(
    session: Session, ports: Ports, art: ExpertRow, body: BodyRow
) -> None:
    add_contribution(session, art, body)
    whole = add_version(session)
    versions.retire(session, [whole])
    part = VersionRow(
        number=versions.next_number(session, 1), part_of=1, part="0" * 16, lineage=whole.lineage, files=[]
    )
    with pytest.raises(RefusedError, match="version 1 is retired"):
        versions.publish(session, ports.blobs, part)


@pytest.mark.usefixtures("law")
def test_a_version_is_made_again_without_a_file_that_only_a_part_is_composed_of(
    session: Session, ports: Ports, art: ExpertRow, body: BodyRow
) -> None:
    add_contribution(session, art, body)
    whole = add_version(session)
    digest = whole.files[0].sha256
    session.add(ComposedRow(part_of=1, key=digest, sha256=digest, size=1, header=b"1", segments=[]))
    session.flush()
    assert versions.publish(session, ports.blobs, whole) is False
