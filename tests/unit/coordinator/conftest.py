from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from moerge_coordinator.storage.database import Database
from support.rows import Clock, rows_in_memory


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(clock: Clock) -> Iterator[Database]:
    made = rows_in_memory(clock)
    yield made
    made.close()


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """One transaction over empty tables."""
    with database.transaction("test") as session:
        yield session
