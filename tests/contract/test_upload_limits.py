"""An owner's rate limit, and abandoned uploads."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from support.federation import SILENT, Member, eventually, federation_of, files_below
from support.processes import Coordinator
from support.uploads import RawClient, announced


@contextmanager
def limited(folder: Path, settings: str) -> Iterator[tuple[Coordinator, Member, RawClient]]:
    """A coordinator with these settings, and an owner without an expert."""
    with federation_of(folder, settings=settings) as federation:
        member = federation.join("law", folder)
        yield federation.server, member, RawClient(federation.server.url, member.token)


def test_a_client_waits_as_long_as_a_refusal_says(tmp_path: Path) -> None:
    with limited(tmp_path, "owner_bytes_per_second = 1000\n") as (_, member, raw):
        upload = raw.open(announced(b"ab", b"a", b"b"))
        big = raw.open(announced(b"x" * 1500))
        assert raw.put(big, b"x" * 1500).status_code == 204
        refused = raw.put(upload, b"a")
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:moerge:problem:too-fast")
        assert refused.headers["Retry-After"] == "1"
        assert raw.open(announced(b"ab", b"a", b"b")).missing == upload.missing
        path = tmp_path / "file"
        path.write_bytes(b"file")
        assert member.client.upload(path, SILENT, title="file").size == 4


def age(home: Path, hours: float) -> None:
    """Makes all uploads older."""
    with sqlite3.connect(home / "coordinator.sqlite") as database:
        for id_, touched in database.execute("SELECT id, touched FROM uploads").fetchall():
            older = datetime.fromisoformat(touched) - timedelta(hours=hours)
            database.execute("UPDATE uploads SET touched = ? WHERE id = ?", (older.isoformat(" "), id_))
    database.close()


def test_abandoned_uploads_are_removed_at_the_start(tmp_path: Path) -> None:
    with limited(tmp_path, "abandoned_after_hours = 10\n") as (server, _, raw):
        kept = files_below(server)
        half = raw.open(announced(b"halved", b"hal", b"ved"))
        raw.put(half, b"hal")
        server.stop()
        age(server.home, 11)
        server.start()
        eventually(lambda: files_below(server) == kept)
        assert raw.commit(half).status_code == 404
