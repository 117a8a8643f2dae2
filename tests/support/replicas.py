"""Coordinators on one PostgreSQL database and one S3 store."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from moerge.blobs.s3 import S3
from support.federation import eventually
from support.processes import Coordinator
from support.servers import BUCKET, Postgres, leader, settings


@dataclass
class Replicas:
    """Replicas; each connection has its home's name."""

    database: str
    place: S3
    servers: list[Coordinator]

    def leader(self) -> Coordinator | None:
        """The current holder of the lock."""
        result = leader(self.database)
        return next((server for server in self.servers if result is not None and result[1] == server.home.name), None)

    def led(self, *others: Coordinator) -> Coordinator:
        """Waits for a leader other than `others`."""
        eventually(lambda: self.leader() not in (None, *others))
        result = self.leader()
        assert result is not None
        return result

    def follower(self) -> Coordinator:
        result = self.led()
        return next(server for server in self.servers if server is not result and server.runs())


@contextmanager
def replicas_of(folder: Path, count: int, postgres: Postgres, s3_server: str) -> Iterator[Replicas]:
    """Replicas with an empty database and an empty folder in the store."""
    database = postgres.database()
    place = S3(bucket=BUCKET, endpoint=s3_server, prefix=secrets.token_hex(6))
    with ExitStack() as stack:
        servers: list[Coordinator] = []
        for number in range(count):
            text = settings(f"{database}&application_name=replica-{number}", place)
            token = servers[0].operator_token if servers else None
            server = Coordinator(folder / f"replica-{number}", token, text)
            if servers:
                shutil.copy(servers[0].home / "version-key.pem", server.home)
            server.start()
            stack.callback(server.stop)
            servers.append(server)
        yield Replicas(database, place, servers)
