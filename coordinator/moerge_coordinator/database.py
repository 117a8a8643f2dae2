"""The database: its engine, its schema, one transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session

from moerge.errors import MoergeError


def open_database(path: Path) -> Engine:
    """An engine on the SQLite file at `path`, its schema brought up to date."""
    maker = _engine(path, "foreign_keys=OFF")  # a migration may make a table anew that others refer to
    with maker.begin() as connection:
        migrate(connection)
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if broken:
            raise MoergeError(f"rows that refer to nothing: {broken[:3]}", where=str(path), todo="restore a backup")
    maker.dispose()
    return _engine(path, "foreign_keys=ON")


def _engine(path: Path, *pragmas: str) -> Engine:
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, record: object) -> None:
        connection.isolation_level = None  # sqlite3 begins none; `_begin` does
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", *pragmas):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # a reader that turns writer would fail with "database is locked"

    return engine


def migrate(connection: Connection) -> None:
    """Brings the schema behind `connection` to the newest revision."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@contextmanager
def transaction(engine: Engine) -> Iterator[Session]:
    """A session whose work is committed at the end, or not done at all."""
    with Session(engine, expire_on_commit=False) as session, session.begin():
        yield session
