"""An owner with a valid token who takes more than its share of disk, memory and rows."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import zstandard

from moerge_proto.digests import sha256_hex
from moerge_proto.uploads import Chunk, NewUpload, Stored, Upload
from support.federation import federation_of, files_below
from support.processes import Coordinator, peak_bytes
from support.uploads import RawClient, announced


@dataclass(frozen=True)
class Attacker(RawClient):
    """An owner with a token, and its coordinator."""

    server: Coordinator

    def send(self, data: bytes) -> None:
        upload = self.open(announced(data))
        self.put(upload, data).raise_for_status()
        self.commit(upload).raise_for_status()

    def drop(self, upload: Upload) -> None:
        self.request("DELETE", f"/uploads/{upload.id}").raise_for_status()


@pytest.fixture(scope="module")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    folder, settings = tmp_path_factory.mktemp("owner"), "owner_uploads = 4\nowner_bytes = 9_000_000_000_000_000\n"
    with federation_of(folder, settings=settings) as federation:
        yield Attacker(federation.server.url, federation.join("law", folder).token, federation.server)


def claimed(data: bytes, size: int) -> NewUpload:
    """An upload that claims another size."""
    return announced(data).model_copy(update={"size": size})


def of_chunks(data: bytes, salt: int, count: int) -> NewUpload:
    chunks = [Chunk(sha256=sha256_hex(f"{salt} {n}".encode()), size=1) for n in range(count)]
    return NewUpload(sha256=sha256_hex(data), size=len(data), chunks=chunks)


def test_a_held_file_announced_with_another_size_is_refused(attacker: Attacker) -> None:
    attacker.send(b"held")
    refused = attacker.post(claimed(b"held", 2**52))
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:moerge:problem:wrong-digest")
    assert "has 4 bytes" in refused.json()["detail"]


def test_a_held_file_announced_in_many_ways_is_one_upload(attacker: Attacker) -> None:
    data = b"h" * 2**20
    attacker.send(data)
    opened = {attacker.open(of_chunks(data, salt, 16)).id for salt in range(100)}
    assert len(opened) == 1


def test_commits_of_one_upload_run_one_by_one(attacker: Attacker) -> None:
    """Each would write the whole file anew: 32 MiB of zeros in 1 KB."""
    server = attacker.server
    packed = zstandard.compress(bytes(2**25))
    whole = sha256_hex(bytes(2**25))
    upload = attacker.open(announced(bytes(2**25), packed, encoding="zstd"))
    attacker.put(upload, packed).raise_for_status()
    before, most = sum(files_below(server).values()), 0
    with ThreadPoolExecutor(8) as pool:
        commits = [pool.submit(attacker.commit, upload) for _ in range(8)]
        while not all(commit.done() for commit in commits):
            most = max(most, sum(_sizes(server.home / "blobs")))
        assert [Stored.model_validate_json(commit.result().content).sha256 for commit in commits] == [whole] * 8
    assert most - before < 2 * 2**25


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        try:
            yield path.stat().st_size
        except FileNotFoundError:  # it has just got its name
            continue


def test_a_file_beyond_the_free_disk_is_not_put_together(attacker: Attacker) -> None:
    refused = attacker.post(claimed(b"beyond any disk", 2**52))
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:moerge:problem:over-quota")
    chunk = b"beyond the free disk"
    size = shutil.disk_usage(attacker.server.home).free
    upload = attacker.open(claimed(chunk, size))
    attacker.put(upload, chunk).raise_for_status()
    refused = attacker.commit(upload)
    assert (refused.status_code, refused.json()["type"]) == (507, "urn:moerge:problem:storage-full")
    attacker.drop(upload)


def test_an_owner_drops_its_uploads_and_opens_others(attacker: Attacker) -> None:
    first, *_, last = [attacker.open(announced(f"open {n}".encode())) for n in range(4)]
    assert attacker.put(last, b"open 3").status_code == 204
    refused = attacker.post(announced(b"one more"))
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:moerge:problem:over-quota")
    before = files_below(attacker.server)
    attacker.drop(first)
    attacker.open(announced(b"one more"))
    attacker.drop(last)
    assert len(files_below(attacker.server)) == len(before) - 1
    assert attacker.commit(last).status_code == 404


def test_bodies_that_are_dear_to_parse_are_refused_unparsed(attacker: Attacker) -> None:
    body = b"[" + b"[]," * 2**19 + b"[]]"  # within the limit of the longest message
    before = peak_bytes(attacker.server, anew=True)

    def post(path: str) -> httpx.Response:
        return attacker.request("POST", path, content=body, headers={"Content-Type": "application/json"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, ["/uploads", "/experts"] * 4))
    assert {answer.status_code for answer in answers} == {413}
    assert peak_bytes(attacker.server) - before < 2**25
