"""Uploads: what an owner may hold and open, whole files only, and nothing that is left for long."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import zstandard
from sqlalchemy import select

from moerge.blobs.local import LocalChunks
from moerge_coordinator.domain import owners
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import HoldingRow, UploadRow
from moerge_proto.digests import sha256_hex
from moerge_proto.messages import FileEntry
from moerge_proto.problems import ProblemType
from moerge_proto.uploads import NewUpload, Upload
from support.rows import Clock, add_expert, file_of
from support.uploads import announced


@dataclass
class Store:
    """Uploads of the owners `firm` and `other`, within limits."""

    uploads: Uploads
    ports: Ports
    folder: Path

    def put(self, upload: Upload, name: str, *pieces: bytes, owner: str = "firm") -> None:
        async def body() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        asyncio.run(self.uploads.receive(owner, upload.id, name, body()))

    def send(self, data: bytes, owner: str = "firm") -> Upload:
        upload = self.uploads.open(owner, announced(data))
        self.put(upload, sha256_hex(data), data, owner=owner)
        assert self.uploads.commit(owner, upload.id).sha256 == sha256_hex(data)
        return upload

    def files(self) -> list[str]:
        """Chunks and blobs, and what is written half."""
        places = [self.folder / "uploads", self.folder / "blobs"]
        return sorted(path.name for place in places for path in place.rglob("*") if path.is_file())

    def held(self) -> list[tuple[str, str]]:
        with self.ports.database.reading() as session:
            return [(row.owner, row.sha256) for row in session.scalars(select(HoldingRow))]


@pytest.fixture
def store(ports: Ports, tmp_path: Path) -> Store:
    """An owner may hold 1000 bytes, have three uploads open, and leave them for ten hours."""
    settings = Settings(home=tmp_path, owner_bytes=1000, owner_uploads=3, abandoned_after_hours=10)
    with ports.database.transaction("test") as session:
        for name, domain in (("firm", "law"), ("other", "art")):
            owners.add(session, name, [domain])
    uploads = Uploads(ports.database, ports.blobs, LocalChunks(tmp_path / "uploads"), settings)
    return Store(uploads, ports, tmp_path)


def test_owner_quota_is_enforced_and_counts_equal_content_once(store: Store) -> None:
    store.send(b"a" * 400)
    store.send(b"a" * 400)
    assert store.uploads.open("firm", announced(b"a" * 400, b"a" * 200, b"a" * 200)).missing == []
    store.send(b"b" * 400)
    assert store.uploads.room("firm") == 200
    with pytest.raises(RefusedError, match="only 200 of 1000 left") as caught:
        store.uploads.open("firm", announced(b"c" * 201))
    assert (caught.value.kind, caught.value.where) == (ProblemType.OVER_QUOTA, "size")
    first = store.uploads.open("firm", announced(b"c" * 200))
    with pytest.raises(RefusedError, match="only 0 of 1000"):
        store.uploads.open("firm", announced(b"d"))
    assert store.uploads.open("firm", announced(b"c" * 200)) == first, "the same again"
    store.uploads.open("other", announced(b"c" * 1000))


def test_an_owner_has_no_more_uploads_open_than_it_may(store: Store) -> None:
    for data in (b"1", b"2", b"3"):
        store.uploads.open("firm", announced(data))
    with pytest.raises(RefusedError, match="3 uploads are open, of at most 3"):
        store.uploads.open("firm", announced(b"4"))
    store.send(b"1")
    store.uploads.open("firm", announced(b"4"))


def test_a_file_of_another_owner_must_be_sent(store: Store) -> None:
    store.send(b"held")
    assert store.uploads.open("other", announced(b"held")).missing == [sha256_hex(b"held")]


def test_a_manifest_of_tiny_chunks_is_refused() -> None:
    for size, pieces in ((10**6, 125), (17, 17), (2**20, 18)):
        chunks = [{"sha256": sha256_hex(bytes([n])), "size": 1} for n in range(pieces)]
        with pytest.raises(ValueError, match="chunks: expected at most"):
            NewUpload.model_validate({"sha256": "0" * 64, "size": size, "chunks": chunks})


def test_a_chunk_is_what_its_name_says_and_nothing_else_is_kept(store: Store) -> None:
    upload, name = store.uploads.open("firm", announced(b"whole")), sha256_hex(b"whole")
    for pieces, kind in (
        ((b"wholesome",), ProblemType.INVALID_REQUEST),
        ((b"who", b"le", b"!"), ProblemType.INVALID_REQUEST),
        ((b"who",), ProblemType.TRUNCATED),
        ((b"other",), ProblemType.WRONG_DIGEST),
    ):
        with pytest.raises(RefusedError) as caught:
            store.put(upload, name, *pieces)
        assert (caught.value.kind, caught.value.where) == (kind, name)
        assert store.files() == []
    for owner, id_, chunk in (
        ("firm", upload.id, sha256_hex(b"x")), ("firm", 99, name), ("other", upload.id, name),
    ):  # fmt: skip
        with pytest.raises(RefusedError) as caught:
            store.put(Upload(id=id_, missing=[]), chunk, b"whole", owner=owner)
        assert caught.value.kind is ProblemType.NOT_FOUND
    with pytest.raises(RefusedError) as caught:
        store.uploads.commit("firm", upload.id)
    assert (caught.value.kind, caught.value.where) == (ProblemType.NOT_READY, name)


def test_a_whole_is_put_together_in_its_order_once(store: Store) -> None:
    upload = store.uploads.open("firm", announced(b"halved", b"hal", b"ved"))
    for piece in (b"ved", b"hal"):
        store.put(upload, sha256_hex(piece), piece)
    assert store.uploads.open("firm", announced(b"halved", b"hal", b"ved")).missing == []
    for _ in range(2):
        assert store.uploads.commit("firm", upload.id).size == 6
    assert store.files() == [sha256_hex(b"halved")], "the chunks are gone"
    store.put(upload, sha256_hex(b"hal"), b"hal")
    assert store.files() == [sha256_hex(b"halved")], "a committed upload takes no more chunks"
    packed = zstandard.compress(b"packed" * 20)
    upload = store.uploads.open("firm", announced(b"packed" * 20, packed, encoding="zstd"))
    store.put(upload, sha256_hex(packed), packed)
    store.uploads.commit("firm", upload.id)
    assert store.ports.blobs.size(sha256_hex(b"packed" * 20)) == 120


@pytest.mark.parametrize(
    ("pieces", "encoding"),
    [
        ((b"hal", b"fed"), "identity"),
        ((b"hal",), "identity"),
        ((b"hal", b"ved", b"!"), "identity"),
        ((b"no zstd frame",), "zstd"),
        ((zstandard.compress(b"hal"),), "zstd"),
        ((zstandard.compress(b"0" * 2**28),), "zstd"),
    ],
)
def test_an_upload_of_other_content_is_removed(
    store: Store, pieces: tuple[bytes, ...], encoding: Literal["identity", "zstd"]
) -> None:
    upload = store.uploads.open("firm", announced(b"halved", *pieces, encoding=encoding))
    for piece in pieces:
        store.put(upload, sha256_hex(piece), piece)
    with pytest.raises(RefusedError) as caught:
        store.uploads.commit("firm", upload.id)
    assert caught.value.kind is ProblemType.WRONG_DIGEST
    assert (store.files(), store.held(), store.uploads.room("firm")) == ([], [], 1000)
    with pytest.raises(RefusedError, match="no upload"):
        store.uploads.commit("firm", upload.id)


def test_sweep_removes_only_old_unused_uploads(store: Store, clock: Clock) -> None:
    used = store.send(b"used")
    with store.ports.database.transaction("test") as session:
        add_expert(session, "law", files=[file_of("used")])
    half = store.uploads.open("firm", announced(b"halved", b"hal", b"ved"))
    store.put(half, sha256_hex(b"hal"), b"hal")
    loose = store.send(b"referred to by nothing")
    clock.later(hours=9)
    recent = store.send(b"asked for")
    store.uploads.sweep_abandoned()
    assert len(store.files()) == 4, "nothing is ten hours old"
    clock.later(hours=2)
    store.uploads.sweep_abandoned()
    assert store.files() == sorted([sha256_hex(b"used"), sha256_hex(b"asked for")])
    with store.ports.database.reading() as session:
        assert session.scalars(select(UploadRow.id)).all() == [recent.id]
    for upload in (half, loose, used):
        with pytest.raises(RefusedError, match="no upload"):
            store.uploads.commit("firm", upload.id)
    clock.later(hours=9)
    store.uploads.held("firm", sha256_hex(b"asked for"), "files")
    clock.later(hours=9)
    store.uploads.sweep_abandoned()
    assert len(store.files()) == 2, "about to be referred to, it is not abandoned"
    clock.later(hours=2)
    store.uploads.sweep_abandoned()
    assert store.held() == [("firm", sha256_hex(b"used"))]


def test_every_request_to_an_upload_keeps_it(store: Store, clock: Clock) -> None:
    upload = store.uploads.open("firm", announced(b"halved", b"hal", b"ved"))
    for piece in (b"hal", b"ved"):
        clock.later(hours=9)
        store.put(upload, sha256_hex(piece), piece)
        store.uploads.sweep_abandoned()
    assert store.uploads.commit("firm", upload.id).size == 6


def test_what_is_discarded_is_gone_unless_somebody_needs_it(store: Store) -> None:
    digest = sha256_hex(b"shared")
    for owner in ("firm", "other"):
        store.send(b"shared", owner)
    store.uploads.discard("firm", [digest, "0" * 64])
    assert (store.held(), store.files()) == ([("other", digest)], [digest])
    with pytest.raises(RefusedError) as caught:
        store.uploads.held("firm", digest, "files.x")
    assert (caught.value.kind, caught.value.where) == (ProblemType.NOT_READY, "files.x")
    store.uploads.discard("other", [digest])
    assert (store.held(), store.files()) == ([], [])


def test_a_fetched_file_is_kept_as_an_upload_is(store: Store) -> None:
    part = store.folder / "part"
    for content, size, kind in ((b"other", 5, ProblemType.WRONG_DIGEST), (b"x" * 1001, 1001, ProblemType.OVER_QUOTA)):
        part.write_bytes(content)
        wanted = FileEntry(name="a", sha256=sha256_hex(b"wanted" if size == 5 else content), size=size)
        with pytest.raises(RefusedError) as caught:
            store.uploads.keep("firm", wanted, part, "https://models.example.org/a")
        assert caught.value.kind is kind
        assert store.held() == []
    part.write_bytes(b"fetched")
    store.uploads.keep("firm", file_of("fetched", "a"), part, "https://models.example.org/a")
    assert not part.exists()
    assert store.uploads.held("firm", sha256_hex(b"fetched"), "a") == 7
