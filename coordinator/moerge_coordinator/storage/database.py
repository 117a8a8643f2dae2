"""The database: its engine, schema and transactions, with the same semantics on SQLite and PostgreSQL.

Writing transactions of all processes run one at a time. A reading transaction sees a snapshot, and never waits.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from moerge.errors import MoergeError
from moerge_coordinator.settings import Event

WRITING, LEADING, SERVING = 0x6D6F65726765_01, 0x6D6F65726765_02, 0x6D6F65726765_03
"""Keys of PostgreSQL's advisory locks."""
KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 1, "keepalives_count": 3, "connect_timeout": 10}
_log = logging.getLogger("moerge.coordinator")
_OPTIONS = "-c lock_timeout=30s -c idle_in_transaction_session_timeout=5min"


def utc_now() -> datetime:
    return datetime.now(UTC)


def _uncounted(name: str, seconds: float) -> None:
    pass


@dataclass(frozen=True)
class Database:
    """The rows, and their clock.

    `observe` is called with the name and the seconds of each writing transaction. `notices`: events for the outbox.
    """

    engine: Engine
    clock: Callable[[], datetime] = utc_now
    observe: Callable[[str, float], None] = _uncounted
    notices: frozenset[Event] = frozenset()

    @contextmanager
    def transaction(self, name: str) -> Iterator[Session]:
        """A session of one atomic transaction."""
        start = time.perf_counter()
        with self._session(self.engine) as session:
            yield session
        self.observe(name, time.perf_counter() - start)
        for line in session.info.get("events", ()):
            _log.info(line)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that reads a snapshot, concurrent with writers; the database refuses its writes."""
        with self._session(self.engine.execution_options(reads=True)) as session:
            yield session

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        with Session(engine, expire_on_commit=False, info=self._info()) as session, session.begin():
            yield session

    def _info(self) -> dict[str, object]:
        return {"clock": self.clock, "notices": self.notices}

    @contextmanager
    def claim(self, name: str) -> Iterator[None]:
        """A lock over all processes. SQLite has only one process."""
        if self.engine.dialect.name != "postgresql":
            yield
            return
        connection = self.engine.raw_connection()
        try:
            connection.cursor().execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (name,))
            connection.commit()  # the lock is the session's
            yield
        finally:
            connection.invalidate()  # closes it, which releases the lock

    def answers(self) -> None:
        """Raises an error unless the database answers."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        self.engine.dispose()


def open_database(
    database: Path | str,
    clock: Callable[[], datetime] = utc_now,
    observe: Callable[[str, float], None] = _uncounted,
    notices: frozenset[Event] = frozenset(),
) -> Database:
    """The SQLite file, or the PostgreSQL database of a URL, with an up-to-date schema and valid references."""
    engine = _open_postgresql(database) if isinstance(database, str) else _open_sqlite(database)
    return Database(engine, clock, observe, notices)


def _open_sqlite(database: Path) -> Engine:
    maker = _sqlite(database, "foreign_keys=OFF")  # a migration may recreate a referenced table
    with maker.begin() as connection:
        migrate(connection)
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if broken:
            raise MoergeError(f"invalid references in rows: {broken[:3]}", where=str(database), todo="restore a backup")
    maker.dispose()
    return _sqlite(database, "foreign_keys=ON")


def _sqlite(path: Path, *pragmas: str) -> Engine:
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, record: object) -> None:
        connection.isolation_level = None  # `_begin` begins transactions, not sqlite3
        cursor = connection.cursor()
        for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", *pragmas):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        reads = _reads(connection)
        connection.exec_driver_sql(f"PRAGMA query_only={'ON' if reads else 'OFF'}")
        # A reader that starts to write would fail with "database is locked".
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def reading_engine(database: Path | str) -> Engine:
    """An engine to read an existing SQLite file, or the PostgreSQL database at a URL, without its settings.

    SQLite opens the file for writing too: a reader can't roll back the transaction of a killed process.
    """
    if isinstance(database, Path):
        return create_engine(f"sqlite:///file:{database.absolute()}?mode=rw&uri=true")
    return create_engine(make_url(database).set(drivername="postgresql+psycopg"))


def _open_postgresql(url: str) -> Engine:
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        connect_args={**KEEPALIVES, "options": _OPTIONS},
        pool_pre_ping=True,
    )

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if _reads(connection):
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITING})")

    try:
        with engine.begin() as connection:
            migrate(connection)
    except OperationalError as error:
        engine.dispose()
        raise unreachable(error) from error
    return engine


def unreachable(error: OperationalError) -> MoergeError:
    """The error shown at the coordinator's start."""
    todo = "check that PostgreSQL runs, and the address, user and password"
    return MoergeError(f"no connection: {str(error.orig).strip()}", where="database", todo=todo)


def _reads(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get("reads"))


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def migrate(connection: Connection) -> None:
    """Migrates the schema to that of this build, unless it is newer."""
    if (revision := unknown_revision(connection)) is not None:
        todo = "install the version of moerge that last ran here, or a newer one"
        raise MoergeError(f"its schema {revision} is newer than this build", where="database", todo=todo)
    config = _alembic()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def unknown_revision(connection: Connection) -> str | None:
    """The revision of the schema, if made by a newer build."""
    revision = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(_alembic()).walk_revisions()}
    return revision if revision is not None and revision not in known else None
