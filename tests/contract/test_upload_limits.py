"""What an owner may hold, open and send; and that what it leaves behind goes away."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import httpx

from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.uploads import Chunk, NewUpload, Upload
from support.federation import SILENT, Member, eventually, federation_of, files_below
from support.processes import Coordinator


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


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].removeprefix("urn:moerge:problem:")


@contextmanager
def limited(folder: Path, settings: str) -> Iterator[tuple[Coordinator, Member]]:
    """A coordinator with these settings, and an owner without an expert."""
    with federation_of(folder, settings=settings) as made:
        yield made.server, made.join("law", folder)


def test_an_upload_over_the_quota_is_refused(tmp_path: Path) -> None:
    with limited(tmp_path, "owner_bytes = 1000\n") as (server, member):
        assert problem(opening(server, member, announced(b"c" * 1001))) == (409, "over-quota")


def test_a_client_waits_as_long_as_a_refusal_says(tmp_path: Path) -> None:
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


def test_abandoned_uploads_are_removed_at_the_start(tmp_path: Path) -> None:
    with limited(tmp_path, "abandoned_after_hours = 10\n") as (server, member):
        kept = files_below(server)
        half = opened(server, member, announced(b"halved", b"hal", b"ved"))
        put(server, member, half, b"hal")
        server.stop()
        age(server.home, 11)
        server.start()
        eventually(lambda: files_below(server) == kept)
        assert request(server, member, "POST", f"/uploads/{half.id}/commit").status_code == 404
