from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from moerge.blobs.local import LocalBlobs, LocalChunks
from moerge_coordinator.domain.contribution_kinds import RULES
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.folders import Folders
from support.rows import Clock, rows_in_memory


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(clock: Clock) -> Iterator[Database]:
    with closing(rows_in_memory(clock)) as database:
        yield database


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """One transaction over empty tables."""
    with database.transaction("test") as session:
        yield session


@pytest.fixture
def ports(database: Database, tmp_path: Path) -> Ports:
    """Empty tables, and empty folders of blobs and chunks."""
    settings, blobs = Settings(home=tmp_path), LocalBlobs(tmp_path / "blobs")
    uploads = Uploads(database, blobs, LocalChunks(tmp_path / "uploads"), settings)
    return Ports(settings, database, blobs, Folders(database, blobs, tmp_path), uploads, RULES)
