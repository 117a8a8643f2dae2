"""The rules of an anchor: its body, its files, and its place in versions."""

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from moerge.models.expert_folder import expert_digest
from moerge_coordinator.domain import anchors, seeds, versions
from moerge_coordinator.domain.contributors import of_body
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import BodyRow, DomainRow, ExpertRow, OwnerRow
from moerge_proto.versions import NewVersion
from support.rows import Clock, add_body, add_contribution, add_expert, add_version, file_of, rows_in_memory


@pytest.fixture
def session() -> Iterator[Session]:
    with rows_in_memory(Clock()).transaction("test") as session:
        yield session


@pytest.fixture
def seed(session: Session) -> BodyRow:
    names = "body.safetensors", "head.safetensors", "parts.safetensors", "config.json", "tokenizer.json"
    return add_body(session, [], method="seed", source="small", seed="5" * 64, files=[file_of(n, n) for n in names])


def anchor(session: Session, seed: BodyRow) -> ExpertRow:
    """The anchor's row, as a workflow would leave it."""
    session.add(OwnerRow(name="general"))
    session.flush()
    session.add(DomainRow(name="general", owner="general"))
    session.flush()
    return add_expert(session, "general", ("5" * 64, seed.digest))


def test_parts_of_the_seed_are_the_anchor_s_files(seed: BodyRow) -> None:
    files = {file.name: file.sha256 for file in seeds.files_of(seed)}
    assert set(files) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert files["model.safetensors"] == file_of("parts.safetensors").sha256
    assert seeds.digest_of(seed) == expert_digest(files)


def test_a_merged_body_has_no_anchor(session: Session, seed: BodyRow) -> None:
    assert anchors.seed_of(session, seed.digest) == seed
    with pytest.raises(RefusedError, match="made under body"):
        anchors.seed_of(session, "0" * 64)
    add_body(session, [add_expert(session, "law")])
    with pytest.raises(RefusedError, match="the seed's MLPs don't answer as the seed does"):
        anchors.seed_of(session)


def test_the_anchor_is_behind_experts_that_arrive_later(session: Session, seed: BodyRow) -> None:
    general = anchor(session, seed)
    add_contribution(session, general, seed)
    with pytest.raises(RefusedError, match="no expert has contributed yet"):
        versions.lineage_of(session, NewVersion())
    for domain in ("law", "art"):
        add_contribution(session, add_expert(session, domain, (domain[0] * 64, seed.digest)), seed)
    lineage = versions.lineage_of(session, NewVersion())
    assert lineage.domains == ["law", "art", "general"]
    anchors.remove(session)
    assert versions.lineage_of(session, NewVersion()).domains == ["law", "art"]
    assert of_body(session, seed).missing == [], "owners aren't asked for it"
    assert add_version(session).lineage.domains == ["law", "art"]
