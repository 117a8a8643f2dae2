"""Bodies: which experts and which method, what takes a retired one's place, and which is current."""

from pathlib import Path
from typing import BinaryIO

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.local import LocalBlobs
from moerge.errors import MoergeError
from moerge.trunk.merge import MergedBody
from moerge.trunk.methods.registry import METHODS
from moerge_coordinator.domain import bodies
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import BodyRow, ExpertRow, now
from moerge_proto.bodies import BodyLineage, BodyOptions, NewBody
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import ExpertState
from moerge_proto.messages import FileEntry
from support.rows import add_body, add_contribution, add_expert


@pytest.fixture
def law(session: Session) -> ExpertRow:
    return add_expert(session, "law")


@pytest.fixture
def art(session: Session) -> ExpertRow:
    return add_expert(session, "art")


def lineage_of(session: Session, **new: object) -> BodyLineage:
    return bodies.lineage_of(session, NewBody.model_validate(new))


def test_without_a_method_the_body_contributions_decide(session: Session, law: ExpertRow, art: ExpertRow) -> None:
    add_contribution(session, law, None)
    assert lineage_of(session).method == "average"
    assert lineage_of(session, experts=[law.digest]).method == "regmean"
    sent = add_contribution(session, art, None)
    lineage = lineage_of(session)
    assert (lineage.method, lineage.experts) == ("regmean", [law.digest, art.digest])
    assert lineage.contributions[1] == sent.digest


def test_a_solved_body_names_who_has_not_contributed(session: Session, law: ExpertRow, art: ExpertRow) -> None:
    add_contribution(session, law, None)
    add_contribution(session, art, None, active=False)
    with pytest.raises(RefusedError, match="no body contribution of art") as caught:
        lineage_of(session, method="regmean")
    assert "`body_contribution`" in caught.value.todo


def test_experts_that_can_not_be_merged_are_refused(session: Session, law: ExpertRow, art: ExpertRow) -> None:
    body = add_body(session, [law])
    parts = add_expert(session, "law", parts=(law.digest, body.digest))
    art.state = ExpertState.RECEIVED
    for experts, reason in (
        ([parts.digest], f"register its dense expert, {law.digest}"),
        ([art.digest], "is not ready"),
        ([law.digest, law.digest], "each only once"),
    ):
        with pytest.raises(RefusedError, match=reason):
            lineage_of(session, experts=experts)
    with pytest.raises(RefusedError, match=f"can't be merged\n.*{law.digest}"):
        lineage_of(session, method="ties", options={"base": parts.digest})
    assert lineage_of(session).experts == [law.digest], "all that are ready and whole"


def test_options_are_checked_before_anything_is_merged(session: Session, law: ExpertRow, art: ExpertRow) -> None:
    for options, reason in (
        ({"weights": {"code": 1}}, "code; the body's domains are law, art"),
        ({"weights": {"law": 0, "art": 0}}, "every weight is zero"),
    ):
        with pytest.raises(RefusedError, match=reason):
            lineage_of(session, method="weighted", options=options)
    with pytest.raises(MoergeError):
        lineage_of(session, method="average", options={"random_seed": 3})
    with pytest.raises(RefusedError, match="does not use a round") as caught:
        lineage_of(session, method="average", round="first")
    assert "regmean" in caught.value.todo
    ties = lineage_of(session, method="ties", options={"base": art.digest})
    assert ties.experts == [law.digest], "all but the base"
    add_contribution(session, law, None)
    regmean = lineage_of(session, experts=[law.digest], method="regmean")
    assert regmean.revision == METHODS["regmean"].revision


def test_remerge_omits_withdrawn_experts_and_adds_a_new_one(session: Session, law: ExpertRow, art: ExpertRow) -> None:
    options = BodyOptions(weights={"law": 2.0, "art": 1.0})
    add_body(session, [law, art], method="weighted", options=options)
    assert bodies.remerge(session) is None, "nothing is withdrawn, and nobody comes"
    code = add_expert(session, "code")
    joined = bodies.remerge(session, code.digest)
    assert joined is not None
    assert (joined.experts, joined.options) == ([law.digest, art.digest, code.digest], options)
    withdraw_expert(session, art, serve=True)
    left = bodies.remerge(session)
    assert left is not None
    assert (left.experts, left.options.weights) == ([law.digest], {"law": 2.0})
    withdraw_expert(session, law, serve=True)
    assert bodies.remerge(session) is None, "nothing is left"


def test_solved_body_is_remerged_from_contributed_experts(session: Session, law: ExpertRow, art: ExpertRow) -> None:
    sent = [add_contribution(session, item, None) for item in (law, art)]
    body = add_body(session, [law, art], method="regmean", contributions=[item.digest for item in sent])
    code = add_expert(session, "code")
    joined = bodies.remerge(session, code.digest)
    assert joined is not None
    assert joined.experts == [law.digest, art.digest], "code has not contributed"
    sent[1].active, body.retired = False, now(session)
    left = bodies.remerge(session)
    assert left is not None
    assert (left.experts, left.contributions) == ([law.digest], [sent[0].digest])


def test_seeds_body_is_never_merged_or_retired(session: Session, law: ExpertRow) -> None:
    with pytest.raises(RefusedError, match="no seed is registered"):
        lineage_of(session, method="seed")
    seed = add_body(session, [], method="seed", source="seed")
    parts = add_expert(session, "law", parts=(law.digest, seed.digest))
    assert bodies.remerge(session, parts.digest) is None
    retired, _ = withdraw_expert(session, law, serve=True)
    assert (retired, seed.retired, bodies.remerge(session)) == ([], None, None)
    for change in ({"experts": [law.digest]}, {"round": "first"}, {"options": {"scale": 2.0}}):
        with pytest.raises(MoergeError) as caught:
            lineage_of(session, method="seed", **change)
        assert caught.value.where in (*change, "options.scale")


def test_registered_seed_becomes_current_again(session: Session, tmp_path: Path, law: ExpertRow) -> None:
    blobs = LocalBlobs(tmp_path)
    seed = add_body(session, [], method="seed", source="seed")
    seed.files = [kept(blobs, "seed")]
    add_body(session, [law])
    lineage = lineage_of(session, method="seed")
    assert (lineage.experts, lineage.contributions) == ([], [])
    known = bodies.known(session, blobs, lineage)
    assert known == merged(seed)
    assert bodies.make_current(session, blobs, merged(seed)) == seed.digest
    assert session.scalars(select(BodyRow.digest).where(BodyRow.current)).all() == [seed.digest]
    other = merged(seed).model_copy(update={"files": [kept(blobs, "another body")], "seed": "0" * 64})
    with pytest.raises(RefusedError, match=r"seed has the same body, with another body\.safetensors"):
        bodies.make_current(session, blobs, other)


def kept(blobs: LocalBlobs, content: str) -> FileEntry:
    def write(out: BinaryIO) -> str:
        out.write(content.encode())
        return sha256_hex(content.encode())

    return blobs.put("body.safetensors", write)


def merged(row: BodyRow) -> MergedBody:
    return message(MergedBody, row)


def test_one_body_is_current_and_a_merged_one_is_found(session: Session, tmp_path: Path, law: ExpertRow) -> None:
    blobs = LocalBlobs(tmp_path)
    first, second = add_body(session, [law]), add_body(session, [law], method="ties")
    for row in (first, second):
        row.files = [kept(blobs, row.digest)]
    assert bodies.make_current(session, blobs, merged(first)) == first.digest
    assert session.scalars(select(BodyRow.digest).where(BodyRow.current)).all() == [first.digest]
    assert bodies.known(session, blobs, merged(second).lineage) == merged(second)
    blobs.delete(second.files[0].sha256)
    assert bodies.known(session, blobs, merged(second).lineage) is None
    assert bodies.make_current(session, blobs, merged(second)) is None
    withdraw_expert(session, law, serve=True)
    with pytest.raises(RefusedError, match="was withdrawn meanwhile"):
        bodies.make_current(session, blobs, merged(first))
