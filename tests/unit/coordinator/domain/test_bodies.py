"""Bodies of registered seeds, and the current one."""

from pathlib import Path
from typing import BinaryIO

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.local import LocalBlobs
from moerge.bodies.merge import MergedBody
from moerge_coordinator.domain import bodies
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import BodyRow
from moerge_proto.digests import sha256_hex
from moerge_proto.messages import FileEntry
from support.rows import add_body


def kept(blobs: LocalBlobs, content: str) -> FileEntry:
    def write(out: BinaryIO) -> str:
        out.write(content.encode())
        return sha256_hex(content.encode())

    return blobs.put("body.safetensors", write)


def made(row: BodyRow) -> MergedBody:
    columns = {name: getattr(row, name) for name in MergedBody.model_fields if hasattr(BodyRow, name)}
    return MergedBody.model_validate({**columns, "method": "seed", "options": {}, "experts": [], "contributions": []})


def current(session: Session) -> list[str]:
    return list(session.scalars(select(BodyRow.digest).where(BodyRow.current)))


def test_one_body_is_current_and_a_registered_seed_becomes_it_again(session: Session, tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    with pytest.raises(RefusedError, match="the operator registers a seed"):
        bodies.find(session, None)
    seed = add_body(session, files=[kept(blobs, "seed")])
    other = add_body(session, "other")
    assert (current(session), bodies.find(session, None)) == ([other.digest], other)
    assert bodies.make_current(session, blobs, made(seed)) == seed.digest
    assert current(session) == [seed.digest]


def test_another_seed_with_the_same_body_is_refused(session: Session, tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    seed = add_body(session, files=[kept(blobs, "seed")])
    other = made(seed).model_copy(update={"files": [kept(blobs, "another body")], "seed": "0" * 64})
    with pytest.raises(RefusedError, match=r"seed has the same body, with another body\.safetensors"):
        bodies.make_current(session, blobs, other)


def test_seed_whose_file_was_removed_meanwhile_is_made_again(session: Session, tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    seed = add_body(session, files=[kept(blobs, "seed")])
    other = add_body(session, "other")
    blobs.delete(seed.files[0].sha256)
    assert bodies.make_current(session, blobs, made(seed)) is None
    assert current(session) == [other.digest]
