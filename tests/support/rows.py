"""The coordinator's rows in memory, with a clock that tests turn."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import create_engine, event
from sqlalchemy.pool import StaticPool

from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import Base

START = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """A time that stands until it is moved."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime:
        return self.time

    def later(self, **by: float) -> datetime:
        self.time += timedelta(**by)
        return self.time


def rows_in_memory(clock: Callable[[], datetime]) -> Database:
    """Empty tables; references between rows hold."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    event.listen(engine, "connect", lambda connection, record: connection.execute("PRAGMA foreign_keys=ON"))
    Base.metadata.create_all(engine)
    return Database(engine, clock)
