"""Blobs: needed by what is neither purged, refused nor retired; all others are removed."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.storage.references import collect, drop_artifacts, needed
from moerge_coordinator.storage.tables import ArtifactRow, BodyRow, ComposedRow, HoldingRow, now
from moerge_proto.composed import Segment
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import ExpertState
from moerge_proto.versions import VersionFile
from support.rows import add_body, add_contribution, add_expert, add_version, file_of


def kept(blobs: Blobs, content: str) -> str:
    def write(out: object) -> str:
        out.write(content.encode())  # type: ignore[attr-defined]
        return sha256_hex(content.encode())

    return blobs.put("file", write).sha256


def names(session: Session, **how: bool) -> set[str]:
    """The contents of needed blobs whose contents are one word."""
    words = ["expert", "refused", "purged", "body", "current", "version", "gone", "held", "artifact"]
    result = needed(session, **how)
    return {word for word in words if sha256_hex(word.encode()) in result}


def test_a_blob_is_needed_as_long_as_something_is_made_of_it(session: Session) -> None:
    rows = {
        word: add_expert(session, f"{word}-domain", files=[file_of(word)]) for word in ("expert", "refused", "purged")
    }
    rows["refused"].state, rows["purged"].purged = ExpertState.REFUSED, now(session)
    current = session.scalars(select(BodyRow)).one()
    current.files = [file_of("current")]
    add_body(session, "other", files=[file_of("body")], current=False)
    current.current = True
    parts = [add_contribution(session, rows["expert"], current, tokens=n) for n in (1, 2)]
    parts[1].purged = now(session)
    for number, word in enumerate(("version", "gone"), 1):
        row = add_version(session, options={"ridge_lambda": float(number)})
        row.files = [VersionFile(name="f", sha256=file_of(word).sha256, size=1, new=True)]
    row.retired = now(session)
    session.add(HoldingRow(owner="expert-domain-owner", sha256=file_of("held").sha256, size=4))
    session.add(ArtifactRow(key="0" * 64, sha256=file_of("artifact").sha256, size=1, maker="0" * 64))
    session.flush()
    assert names(session) == {"expert", "body", "current", "version", "held", "artifact"}
    assert names(session, holdings=False) == {"expert", "body", "current", "version", "artifact"}
    assert needed(session) & {part.digest for part in parts} == {parts[0].digest}


def test_files_that_a_part_s_file_is_composed_of_are_needed(session: Session) -> None:
    law = add_expert(session, "law")
    add_contribution(session, law, session.scalars(select(BodyRow)).one())
    of, source = add_version(session).number, file_of("source").sha256
    segments = [Segment(sha256=source, start=0, end=1)]
    session.add(ComposedRow(key="0" * 64, part_of=of, sha256="1" * 64, size=1, header=b"", segments=segments))
    session.flush()
    assert source in needed(session)


def test_derived_files_are_dropped_with_their_last_version(session: Session) -> None:
    law = add_expert(session, "law")
    add_contribution(session, law, add_body(session))
    for number, words in enumerate((("body", "one"), ("body", "two")), 1):
        row = add_version(session, options={"ridge_lambda": float(number)})
        row.files = [VersionFile(name=word, sha256=file_of(word).sha256, size=1, new=True) for word in words]
    for word in ("body", "one", "two", "half"):
        session.add(ArtifactRow(key=file_of(word).sha256, sha256=file_of(word).sha256, size=1, maker="0" * 64))
    row.retired = now(session)
    session.flush()
    drop_artifacts(session)
    left = set(session.scalars(select(ArtifactRow.sha256)))
    assert left == {file_of("body").sha256, file_of("one").sha256}


def test_a_composed_file_is_dropped_with_its_part_even_if_a_version_has_the_same_content(session: Session) -> None:
    """Its segments are of a retired version's blobs, which may have a withdrawn expert's MLPs beside them."""
    add_contribution(session, add_expert(session, "law"), add_body(session))
    files = [VersionFile(name="f", sha256=file_of("mlp").sha256, size=1, new=True)]
    for number in (1, 2):
        row = add_version(session, options={"ridge_lambda": float(number)})
        row.files = files
        session.add(ComposedRow(part_of=number, key="0" * 64, sha256=files[0].sha256, size=1, header=b"", segments=[]))
    part = add_version(session, options={"ridge_lambda": 3.0})
    part.files, part.part_of, part.part = files, 2, "0" * 16
    session.flush()
    drop_artifacts(session)
    assert list(session.scalars(select(ComposedRow.part_of))) == [2]


@pytest.mark.parametrize("all_of_them", [False, True])
def test_only_superfluous_candidates_are_removed(ports: Ports, *, all_of_them: bool) -> None:
    used, loose, other = (kept(ports.blobs, word) for word in ("used", "loose", "another"))
    with ports.database.transaction("test") as session:
        add_expert(session, "law", files=[file_of("used")])
    assert collect(ports.database, ports.blobs, None if all_of_them else [used, loose, "0" * 64]) == (
        (2, 12) if all_of_them else (1, 5)
    )
    left = {digest for digest, _ in ports.blobs.digests()}
    assert left == ({used} if all_of_them else {used, other})
