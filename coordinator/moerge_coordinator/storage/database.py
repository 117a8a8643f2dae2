"""The database: its engine, schema and transactions, with the same semantics on SQLite and PostgreSQL.

Writing transactions of all processes run one at a time. A reading transaction sees a snapshot, and never waits.
"""

import logging
import re
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
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from moerge.errors import MoergeError
from moerge.files import require_locks
from moerge_coordinator.settings import Event

WRITING, LEADING, SERVING = 0x6D6F65726765_01, 0x6D6F65726765_02, 0x6D6F65726765_03
"""Keys of PostgreSQL's advisory locks."""
KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 1, "keepalives_count": 3, "connect_timeout": 10}
_log = logging.getLogger("moerge.coordinator")
_SESSION = "SET lock_timeout = '30s'; SET idle_in_transaction_session_timeout = '5min'"
_POOLER = "connect to PostgreSQL itself, or through a pooler in session mode"
_REMEDIES = {
    "unsupported startup parameter": _POOLER,
    "authentication failed": "correct user and password in the address; special characters are written like %40 for @",
    "no password supplied": "add the password: postgresql://USER:PASSWORD@HOST/NAME",
    "database .*does not exist|no such database": "correct the name, or create it: CREATE DATABASE name OWNER user",
    "role .*does not exist|no such user": "correct the user, or create it: CREATE ROLE name LOGIN PASSWORD '...'",
    "failed to resolve host|could not translate host": "correct the host in the address",
    "does not support SSL": "remove sslmode from the address, or turn on ssl in postgresql.conf",
    "certificate": "correct the certificates that the address names, such as sslrootcert=FILE",
    "no pg_hba.conf entry": "allow this machine, user and database in pg_hba.conf; hostssl needs ?sslmode=require",
    "sslmode=require|is insecure|SSL.* required": "add ?sslmode=require to the address",
    "too many|connection slots": "raise max_connections in postgresql.conf, or stop other clients",
    "starting up|shutting down|recovery mode": "wait until PostgreSQL has started, then run the command again",
    "lock timeout": "another process is writing; run the command again",
    "permission denied": "make the user the owner: ALTER DATABASE name OWNER TO user",
    "read-only transaction": "name the primary server, not a standby",
    "": "check that PostgreSQL runs and listens at this host and port, and that no firewall is between",
}
"""Pattern of PostgreSQL's, a pooler's or the driver's message -> remedy; the first that matches."""


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


OTHER = "its schema {} is another build's: of a newer one, or of a development build"
OTHER_TODO = "install the moerge that last ran here; homes of development builds are made anew, see CHANGELOG.md"


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
    require_locks(database.parent)
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
        connect_args=dict(KEEPALIVES),
        pool_pre_ping=True,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, record: object) -> None:
        connection.cursor().execute(_SESSION)  # not as start-up options, which poolers refuse
        connection.commit()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if _reads(connection):
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITING})")

    try:
        require_sessions(engine.execution_options(reads=True))
        with engine.begin() as connection:
            migrate(connection)
    except MoergeError:
        engine.dispose()
        raise
    except DBAPIError as error:
        engine.dispose()
        raise unusable(error.orig) from error
    return engine


def require_sessions(engine: Engine) -> None:
    """Requires a session of PostgreSQL for each connection: locks are a session's.

    A pooler in another mode gives an idle connection's session to the next one.
    """
    with engine.connect() as first, engine.connect() as second:
        sessions = set()
        for connection in (first, second):
            sessions.add(connection.execute(text("SELECT pg_backend_pid()")).scalar())
            connection.commit()
    if len(sessions) == 1:
        what = "a pooler gives several connections one session of PostgreSQL, such as with pool_mode = transaction"
        raise MoergeError(what, where="database", todo=_POOLER)


def unusable(error: BaseException | None) -> MoergeError:
    """The error shown at the coordinator's start, by that of PostgreSQL's driver."""
    said = str(error)
    if getattr(error, "sqlstate", None) is None:
        what = f"no connection: {' '.join(said.split())}"
    else:
        what = said.partition("\n")[0]
    todo = next(todo for pattern, todo in _REMEDIES.items() if re.search(pattern, said))
    return MoergeError(what, where="database", todo=todo)


def _reads(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get("reads"))


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def migrate(connection: Connection) -> None:
    """Migrates the schema to that of this build, unless it is another build's."""
    if (revision := unknown_revision(connection)) is not None:
        raise MoergeError(OTHER.format(revision), where="database", todo=OTHER_TODO)
    config = _alembic()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def revision_of(connection: Connection) -> str | None:
    """The revision of the schema; None for a database without one."""
    return MigrationContext.configure(connection).get_current_revision()


def unknown_revision(connection: Connection) -> str | None:
    """The revision of the schema, if made by a build that this one doesn't know."""
    revision = revision_of(connection)
    known = {script.revision for script in ScriptDirectory.from_config(_alembic()).walk_revisions()}
    return revision if revision is not None and revision not in known else None
