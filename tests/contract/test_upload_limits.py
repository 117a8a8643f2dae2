"""What an owner may hold, open and send; and that what it leaves behind goes away."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest

from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.uploads import Chunk, NewUpload, Upload
from support.federation import SILENT, Member, eventually, federation_of, files_below, joined
from support.processes import Coordinator, peak_bytes


def announced(data: bytes, *pieces: bytes) -> NewUpload:
    chunks = [Chunk(sha256=sha256_hex(piece), size=len(piece)) for piece in pieces or (data,)]
    return NewUpload(sha256=sha256_hex(data), size=len(data), chunks=chunks)


def request(server: Coordinator, member: Member, method: str, path: str, **kwargs: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {member.token}", **kwargs.pop("headers", {})}  # type: ignore[dict-item]
    return httpx.request(method, f"{server.url}/v1{path}", headers=headers, timeout=60, **kwargs)  # type: ignore[arg-type]


def opening(server: Coordinator, member: Member, new: NewUpload) -> httpx.Response:
    return request(server, member, "POST", "/uploads", json=new.model_dump())


def opened(server: Coordinator, member: Member, new: NewUpload) -> Upload:
    return Upload.model_validate_json(opening(server, member, new).raise_for_status().content)


def put(server: Coordinator, member: Member, upload: Upload, body: bytes) -> httpx.Response:
    name = sha256_hex(body)
    headers = {"Content-Digest": content_digest(name)}
    return request(server, member, "PUT", f"/uploads/{upload.id}/chunks/{name}", content=body, headers=headers)


def sent(server: Coordinator, member: Member, data: bytes) -> Upload:
    upload = opened(server, member, announced(data))
    assert put(server, member, upload, data).status_code == 204
    assert request(server, member, "POST", f"/uploads/{upload.id}/commit").status_code == 200
    return upload


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].removeprefix("urn:moerge:problem:")


@contextmanager
def limited(folder: Path, settings: str) -> Iterator[tuple[Coordinator, Member]]:
    """A coordinator with these settings, and an owner without an expert."""
    with federation_of(folder, settings=settings) as made:
        yield made.server, made.join("law", folder)


@pytest.fixture(scope="module")
def unlimited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Coordinator, Member]]:
    with limited(tmp_path_factory.mktemp("unlimited"), "") as made:
        yield made


def test_an_owner_holds_and_opens_no_more_than_it_may(tmp_path: Path) -> None:
    with limited(tmp_path, "owner_bytes = 1000\nowner_uploads = 2\n") as (server, member):
        sent(server, member, b"a" * 400)
        refused = opening(server, member, announced(b"c" * 601))
        assert problem(refused) == (409, "over-quota")
        assert "600 of 1000" in refused.json()["detail"]
        for data in (b"1", b"2", b"1"):
            assert opening(server, member, announced(data)).status_code == 201
        assert problem(opening(server, member, announced(b"3"))) == (409, "over-quota")


def test_who_sends_too_fast_is_told_when_to_come_again_and_the_client_obeys(tmp_path: Path) -> None:
    with limited(tmp_path, "owner_bytes_per_second = 1000\n") as (server, member):
        upload = opened(server, member, announced(b"ab", b"a", b"b"))
        big = opened(server, member, announced(b"x" * 1500))
        assert put(server, member, big, b"x" * 1500).status_code == 204
        refused = put(server, member, upload, b"a")
        assert problem(refused) == (429, "too-fast")
        assert refused.headers["Retry-After"] == "1"
        assert opened(server, member, announced(b"ab", b"a", b"b")).missing == upload.missing
        path = tmp_path / "file"
        path.write_bytes(b"file")
        assert member.client.upload(path, SILENT, title="file").size == 4


def age(home: Path, hours: float) -> None:
    """Lets all uploads be older by so much."""
    with sqlite3.connect(home / "coordinator.sqlite") as database:
        for id_, touched in database.execute("SELECT id, touched FROM uploads").fetchall():
            older = datetime.fromisoformat(touched) - timedelta(hours=hours)
            database.execute("UPDATE uploads SET touched = ? WHERE id = ?", (older.isoformat(" "), id_))
    database.close()


def test_what_is_left_for_long_is_swept_at_the_start_and_what_is_used_or_fresh_stays(tmp_path: Path) -> None:
    with limited(tmp_path, "abandoned_after_hours = 10\n") as (server, member):
        ready = joined(server, "art", tmp_path, seed=1)
        kept = files_below(server)
        half = opened(server, member, announced(b"halved", b"hal", b"ved"))
        put(server, member, half, b"hal")
        loose = sent(server, member, b"referred to by nothing")
        server.stop()
        age(server.home, 11)
        server.start()
        eventually(lambda: files_below(server) == kept)
        for upload in (half, loose):
            assert request(server, member, "POST", f"/uploads/{upload.id}/commit").status_code == 404
        assert [each.state for each in ready.client.experts()] == ["ready"]
        ready.client.close()


def test_a_body_larger_than_a_chunk_is_refused_before_it_is_in_memory(unlimited: tuple[Coordinator, Member]) -> None:
    server, member = unlimited
    body = iter([b'{"domain": "'] + [b"x" * 2**20] * 200)
    before = peak_bytes(server, anew=True)
    response = request(server, member, "POST", "/experts", content=body)
    assert problem(response) == (413, "too-large")
    assert peak_bytes(server) - before < 2**26


def test_many_uploads_at_once_take_no_more_memory(unlimited: tuple[Coordinator, Member]) -> None:
    """32 chunks of 8 MiB at once would be 256 MiB, if they were held. It is last: some of that room is kept."""
    server, member = unlimited
    bodies = [bytes([n]) * 2**23 for n in range(32)]
    sent(server, member, b"first" * 10**6)
    before = peak_bytes(server, anew=True)
    with ThreadPoolExecutor(len(bodies)) as pool:
        list(pool.map(lambda body: sent(server, member, body), bodies))
    assert peak_bytes(server) - before < 2**27
