"""An owner with a valid token who takes more than its share of disk, memory and rows."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import zstandard

from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.uploads import Chunk, NewUpload, Stored, Upload
from support.federation import Member, federation_of, files_below
from support.processes import Coordinator, peak_bytes


class Attacker:
    """An owner's raw calls."""

    def __init__(self, server: Coordinator, member: Member) -> None:
        self.server, self.member = server, member
        headers = {"Authorization": f"Bearer {member.token}"}
        self.http = httpx.Client(base_url=f"{server.url}/v1", headers=headers, timeout=60)

    def open(self, new: NewUpload) -> httpx.Response:
        return self.http.post("/uploads", json=new.model_dump())

    def put(self, upload: int, chunk: bytes) -> httpx.Response:
        name = sha256_hex(chunk)
        path = f"/uploads/{upload}/chunks/{name}"
        return self.http.put(path, content=chunk, headers={"Content-Digest": content_digest(name)})

    def commit(self, upload: int) -> httpx.Response:
        return self.http.post(f"/uploads/{upload}/commit")

    def send(self, data: bytes) -> None:
        upload = Upload.model_validate_json(self.open(plain(data)).raise_for_status().content)
        self.put(upload.id, data).raise_for_status()
        self.commit(upload.id).raise_for_status()


@pytest.fixture(scope="module")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    folder = tmp_path_factory.mktemp("owner")
    with federation_of(folder, settings="owner_uploads = 4\nowner_bytes = 9_000_000_000_000_000\n") as made:
        attacker = Attacker(made.server, made.join("law", folder))
        with attacker.http:
            yield attacker


def plain(data: bytes, *, size: int = 0) -> NewUpload:
    return NewUpload(
        sha256=sha256_hex(data), size=size or len(data), chunks=[Chunk(sha256=sha256_hex(data), size=len(data))]
    )


def of_chunks(data: bytes, salt: int, count: int) -> NewUpload:
    chunks = [Chunk(sha256=sha256_hex(f"{salt} {n}".encode()), size=1) for n in range(count)]
    return NewUpload(sha256=sha256_hex(data), size=len(data), chunks=chunks)


def test_a_held_file_announced_with_another_size_is_refused(attacker: Attacker) -> None:
    attacker.send(b"held")
    refused = attacker.open(plain(b"held", size=2**52))
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:moerge:problem:wrong-digest")
    assert "has 4 bytes" in refused.json()["detail"]


def test_a_held_file_announced_in_many_ways_is_one_upload(attacker: Attacker) -> None:
    data = b"h" * 2**20
    attacker.send(data)
    opened = {attacker.open(of_chunks(data, salt, 16)).json()["id"] for salt in range(100)}
    assert len(opened) == 1


def test_commits_of_one_upload_run_one_by_one(attacker: Attacker) -> None:
    """Each would write the whole file anew: 32 MiB of zeros in 1 KB."""
    server = attacker.server
    packed = zstandard.compress(bytes(2**25))
    whole = sha256_hex(bytes(2**25))
    new = NewUpload(
        sha256=whole, size=2**25, encoding="zstd", chunks=[Chunk(sha256=sha256_hex(packed), size=len(packed))]
    )
    upload = attacker.open(new).raise_for_status().json()["id"]
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
    refused = attacker.open(plain(b"beyond any disk", size=2**52))
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:moerge:problem:over-quota")
    chunk = b"beyond the free disk"
    size = shutil.disk_usage(attacker.server.home).free
    upload = attacker.open(plain(chunk, size=size)).raise_for_status().json()["id"]
    attacker.put(upload, chunk).raise_for_status()
    refused = attacker.commit(upload)
    assert (refused.status_code, refused.json()["type"]) == (507, "urn:moerge:problem:storage-full")
    attacker.member.client.send("DELETE", f"/v1/uploads/{upload}")


def test_an_owner_drops_its_uploads_and_opens_others(attacker: Attacker) -> None:
    first, *_, opened = [attacker.open(plain(f"open {n}".encode())).raise_for_status() for n in range(4)]
    assert attacker.put(opened.json()["id"], b"open 3").status_code == 204
    refused = attacker.open(plain(b"one more"))
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:moerge:problem:over-quota")
    before = files_below(attacker.server)
    attacker.member.client.send("DELETE", f"/v1/uploads/{first.json()['id']}")
    attacker.open(plain(b"one more")).raise_for_status()
    attacker.member.client.send("DELETE", f"/v1/uploads/{opened.json()['id']}")
    assert len(files_below(attacker.server)) == len(before) - 1
    assert attacker.commit(opened.json()["id"]).status_code == 404


def test_bodies_that_are_dear_to_parse_are_refused_unparsed(attacker: Attacker) -> None:
    body = b"[" + b"[]," * 2**19 + b"[]]"  # within the limit of the longest message
    before = peak_bytes(attacker.server, anew=True)

    def post(path: str) -> httpx.Response:
        return attacker.http.post(path, content=body, headers={"Content-Type": "application/json"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, ["/uploads", "/experts"] * 4))
    assert {answer.status_code for answer in answers} == {413}
    assert peak_bytes(attacker.server) - before < 2**25
