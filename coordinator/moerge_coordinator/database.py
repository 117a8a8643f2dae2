"""The database: its engine, its schema, one transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
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


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def migrate(connection: Connection) -> None:
    """Brings the schema behind `connection` to the newest revision.

    Raises:
        MoergeError: it is newer than this build.
    """
    if (revision := unknown_revision(connection)) is not None:
        todo = "install the moerge that last ran here, or a newer one"
        raise MoergeError(f"its schema {revision} is newer than this build", where="database", todo=todo)
    config = _alembic()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def unknown_revision(connection: Connection) -> str | None:
    """The revision of the schema behind `connection`, if a newer build made it."""
    revision = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(_alembic()).walk_revisions()}
    return revision if revision is not None and revision not in known else None


@contextmanager
def transaction(engine: Engine) -> Iterator[Session]:
    """A session whose work is committed at the end, or not done at all."""
    with Session(engine, expire_on_commit=False) as session, session.begin():
        yield session
