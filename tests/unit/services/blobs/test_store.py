"""Blobs and chunks, one suite over every store."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import httpx
import obstore
import pytest
from obstore.store import S3Store

from moerge.blobs.local import LocalBlobs, LocalChunks
from moerge.blobs.objects import PART, SMALL
from moerge.blobs.s3 import S3, S3Blobs, S3Chunks
from moerge.blobs.store import Blobs, Chunks, show
from moerge.errors import MoergeError
from moerge_proto.digests import sha256_hex
from moerge_proto.messages import FileEntry
from moerge_proto.ranges import opened, read_bytes

LARGE = 40 * 2**20  # several parts
RANGED = os.urandom(SMALL + PART + 1)


Make = Callable[[str], Blobs]


@pytest.fixture(params=["local", "s3"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes processes' views of one store; each has a local folder of its own, if it needs one."""
    if request.param == "local":
        return lambda process: LocalBlobs(tmp_path / "blobs")
    place: S3 = request.getfixturevalue("s3")
    return lambda process: S3Blobs(place, tmp_path / process, 2**40)


@pytest.fixture
def blobs(make: Make) -> Blobs:
    return make("a")


def writing(data: bytes) -> Callable[[BinaryIO], str]:
    def write(out: BinaryIO) -> str:
        out.write(data)
        return sha256_hex(data)

    return write


def put(blobs: Blobs, data: bytes) -> str:
    return blobs.put("file", writing(data)).sha256


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(LARGE)], ids=["empty", "small", "large"])
def test_every_process_reads_what_one_has_put(make: Make, data: bytes) -> None:
    entry = make("a").put("weights", writing(data))
    assert entry == FileEntry(name="weights", sha256=sha256_hex(data), size=len(data))
    for process in "ab":
        other = make(process)
        assert other.has(entry.sha256)
        assert other.size(entry.sha256) == len(data)
        assert other.local(entry.sha256).read_bytes() == data
        assert other.local(entry.sha256).stat().st_mode & 0o777 == 0o444
        assert list(other.digests()) == [(entry.sha256, len(data))]


def test_an_absent_blob_has_no_bytes(blobs: Blobs, tmp_path: Path) -> None:
    digest = sha256_hex(b"absent")
    assert not blobs.has(digest)
    assert blobs.size(digest) is None
    assert list(blobs.digests()) == []
    blobs.delete(digest)
    for read in (blobs.local, blobs.source, lambda digest: blobs.link(digest, tmp_path / "link")):
        with pytest.raises(FileNotFoundError):
            read(digest)


def test_law_10_a_writer_that_raises_leaves_nothing(blobs: Blobs, tmp_path: Path) -> None:
    def write(out: BinaryIO) -> str:
        out.write(bytes(2**23 + 1))  # more than a buffer of direct I/O
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        blobs.put("file", write)
    assert list(blobs.digests()) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_deleted_blob_is_gone_for_every_process(make: Make) -> None:
    digest = put(make("a"), b"data")
    make("b").delete(digest)
    assert not make("a").has(digest)
    assert put(make("a"), b"data") == digest
    assert make("c").local(digest).read_bytes() == b"data"


def test_equal_content_put_by_many_at_once_is_stored_once(make: Make) -> None:
    views = [make(f"process-{number}") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(lambda blobs: put(blobs, b"same"), views))
    assert digests == {sha256_hex(b"same")}
    assert list(views[0].digests()) == [(sha256_hex(b"same"), 4)]


def test_a_folder_of_links_is_complete_and_repaired(make: Make, tmp_path: Path) -> None:
    blobs, folder = make("a"), tmp_path / "views" / "folder"
    files = [blobs.put(name, writing(name.encode())) for name in ("one", "two")]
    absent = FileEntry(name="three", sha256=sha256_hex(b"absent"), size=1)
    with pytest.raises(FileNotFoundError):
        show(blobs, [*files, absent], folder)
    assert list(folder.parent.iterdir()) == []
    show(blobs, files, folder)
    (folder / "two").unlink()
    show(blobs, files, folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"one": "one", "two": "two"}


def test_a_folder_shown_by_many_at_once_is_whole_for_each(make: Make, tmp_path: Path) -> None:
    blobs, folder = make("a"), tmp_path / "views" / "folder"
    files = [blobs.put(str(number), writing(b"x" * number)) for number in range(20)]

    def shown(_: int) -> int:
        show(blobs, files, folder)
        return len(list(folder.iterdir()))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(shown, range(8))) == {20}
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


def test_a_sweep_removes_half_files_of_killed_writers_only(blobs: Blobs, tmp_path: Path) -> None:
    digest = put(blobs, b"whole")
    [folder] = {path.parent.parent for path in tmp_path.rglob(digest)}
    litter = folder / "incoming" / "half"
    litter.write_bytes(b"half")
    blobs.sweep()
    assert not litter.exists()
    assert blobs.local(digest).read_bytes() == b"whole"


def test_every_range_of_a_blob_is_its_bytes(blobs: Blobs) -> None:
    file = opened(blobs.source(put(blobs, RANGED)))
    assert file.size == len(RANGED)
    for start, count in [(0, 8), (5, 2 * PART), (len(RANGED) - 3, 9), (len(RANGED), 1), (7, 0)]:
        assert read_bytes(file, start, count) == RANGED[start : start + count]
    file.close()


# --- S3 alone


def store(place: S3) -> S3Store:
    return S3Store(place.bucket, endpoint=place.endpoint, client_options={"allow_http": True})


def test_a_blob_s_address_needs_no_credentials(s3: S3, tmp_path: Path) -> None:
    blobs = S3Blobs(s3, tmp_path / "cache", 2**40)
    url = blobs.url(put(blobs, b"0123456789"))
    assert url is not None
    assert httpx.get(url).content == b"0123456789"
    assert httpx.get(url, headers={"Range": "bytes=2-4"}).content == b"234"
    assert httpx.get(url.partition("?")[0]).status_code == 403


def test_an_object_that_was_damaged_is_never_given_out(s3: S3, tmp_path: Path) -> None:
    digest = put(S3Blobs(s3, tmp_path / "a", 2**40), b"data")
    obstore.put(store(s3), f"{s3.prefix}/blobs/{digest}", b"DATA")
    with pytest.raises(MoergeError, match="SHA-256") as caught:
        S3Blobs(s3, tmp_path / "b", 2**40).local(digest)
    assert digest in caught.value.where
    assert [path for path in (tmp_path / "b").rglob("*") if path.is_file()] == []


def test_a_store_that_refuses_is_named(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(MoergeError, match="can't be used") as caught:
        S3Blobs(s3, tmp_path / "cache", 2**40).has(sha256_hex(b""))
    assert caught.value.where == "s3"
    assert f"bucket {s3.bucket!r}" in caught.value.what


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_the_cache_drops_what_was_used_longest_ago(s3: S3, tmp_path: Path) -> None:
    clock = Clock()
    blobs = S3Blobs(s3, tmp_path / "cache", 300, clock)
    digests = [put(blobs, bytes([number]) * 100) for number in range(3)]

    def cached() -> set[str]:
        return {path.name for path in (tmp_path / "cache").glob("??/*")}

    clock.now += 4000
    blobs.local(digests[0])
    digests.append(put(blobs, b"new" * 33))
    assert cached() == {digests[0], digests[2], digests[3]}
    digests.append(put(blobs, b"newer" * 100))
    assert cached() == {digests[0], digests[3], digests[4]}  # over its bound, but used in the last hour
    with blobs.holding():
        clock.now += 4000
        put(blobs, b"newest" * 100)
        assert len(cached()) == 1  # what was used before it began may go
        held = set(cached())
        clock.now += 4000
        put(blobs, b"another" * 100)
        assert held <= cached()
    for digest in digests:
        assert sha256_hex(blobs.local(digest).read_bytes()) == digest


def test_a_pruned_cache_forgets_blobs_deleted_by_others(s3: S3, tmp_path: Path) -> None:
    one, other = (S3Blobs(s3, tmp_path / name, 2**40) for name in "ab")
    digest, kept = put(one, b"private"), put(one, b"kept")
    other.delete(digest)
    one.prune()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [kept]


def test_a_pruning_keeps_blobs_that_are_being_put(s3: S3, tmp_path: Path) -> None:
    blobs = S3Blobs(s3, tmp_path / "cache", 2**40)
    done = threading.Event()

    def prune() -> None:
        while not done.is_set():
            blobs.prune()

    pruning = threading.Thread(target=prune)
    pruning.start()
    try:
        digests = [put(blobs, str(number).encode()) for number in range(30)]
    finally:
        done.set()
        pruning.join()
    assert {digest for digest, _ in blobs.digests()} == set(digests)


def test_content_that_is_there_is_not_sent_again(s3: S3, tmp_path: Path) -> None:
    data = os.urandom(LARGE)
    digest = put(S3Blobs(s3, tmp_path / "a", 2**40), data)
    path, mark = f"{s3.prefix}/blobs/{digest}", bytes(LARGE)
    obstore.put(store(s3), path, mark)  # would be replaced
    assert put(S3Blobs(s3, tmp_path / "b", 2**40), data) == digest
    assert bytes(obstore.get(store(s3), path).bytes()) == mark


def test_only_small_blobs_stay_on_disk(s3: S3, tmp_path: Path) -> None:
    blobs = S3Blobs(s3, tmp_path / "cache", 2**40)
    put(blobs, RANGED)
    small = put(blobs, RANGED[:SMALL])
    result = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [(path.name, path.stat().st_size) for path in result] == [(small, SMALL)]


def test_a_blob_removed_while_it_is_read_is_named(s3: S3, tmp_path: Path) -> None:
    blobs = S3Blobs(s3, tmp_path / "cache", 2**40)
    digest = put(blobs, b"data")
    file = opened(blobs.source(digest))
    blobs.delete(digest)
    with pytest.raises(MoergeError, match="removed") as caught:
        read_bytes(file, 0, 4)
    assert digest in caught.value.where


# --- chunks


@pytest.fixture(params=["local", "s3"])
def chunks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Chunks, Chunks]]:
    """Two processes' views of one store."""
    if request.param == "local":
        yield LocalChunks(tmp_path / "uploads"), LocalChunks(tmp_path / "uploads")
    else:
        place: S3 = request.getfixturevalue("s3")
        yield S3Chunks(place, tmp_path / "a"), S3Chunks(place, tmp_path / "b")


def keep(chunks: Chunks, upload: int, data: bytes) -> str:
    chunks.incoming.mkdir(parents=True, exist_ok=True)
    file = chunks.incoming / "come"
    file.write_bytes(data)
    chunks.keep(upload, sha256_hex(data), file)
    file.unlink(missing_ok=True)
    return sha256_hex(data)


def test_a_chunk_of_one_process_is_read_by_another(chunks: tuple[Chunks, Chunks]) -> None:
    one, other = chunks
    digests = {keep(one, 1, b"first"), keep(one, 1, b"second"), keep(one, 1, b"second")}
    keep(one, 11, b"of another upload")
    assert other.held(1) == digests
    assert other.held(2) == set()
    with other.open(1, sha256_hex(b"second")) as file:
        assert file.read() == b"second"
    other.remove(1)
    other.remove(1)
    assert one.held(1) == set()
    assert one.held(11) == {sha256_hex(b"of another upload")}
    with pytest.raises(FileNotFoundError):
        one.open(1, sha256_hex(b"first"))
