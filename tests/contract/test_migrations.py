"""From every earlier schema, with rows in every table, up to today's: no row is lost or changed."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import moerge_coordinator
from moerge_coordinator.storage.database import migrate, open_database
from moerge_coordinator.storage.tables import Base
from support.servers import Postgres

MIGRATIONS = ScriptDirectory(str(Path(moerge_coordinator.__file__).parent / "storage" / "migrations"))
HEAD = MIGRATIONS.get_current_head()
EARLIER = [script.revision for script in MIGRATIONS.walk_revisions() if script.revision != HEAD]
RENAMED = {("trunks", "nonzero_gains"): "bounds"}  # in 0002
ROWS = 3


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "database"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def engine(database: Path | str) -> Iterator[sa.Engine]:
    """One without the coordinator's ways."""
    if isinstance(database, str):
        made = sa.create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    else:
        made = sa.create_engine(f"sqlite:///{database}")
    yield made
    made.dispose()


def value(column: sa.Column[Any], row: int) -> Any:
    """Something of the column's type that differs from row to row where it may."""
    kind = column.type
    if column.foreign_keys:
        [key] = column.foreign_keys
        return value(key.column, row)
    if isinstance(kind, sa.Boolean):
        return row % 2 == 0
    if isinstance(kind, sa.BigInteger):
        return 2**40 + row
    if isinstance(kind, sa.Integer):
        return row + 1
    if isinstance(kind, sa.Float):
        return row + 0.5
    if isinstance(kind, sa.DateTime):
        return datetime(2026, 1, 1 + row)  # as the tables keep them
    if isinstance(kind, sa.JSON):
        return [{"name": f"{column.name}-{row}", "size": row}]
    length = getattr(kind, "length", None) or 20
    return f"{column.table.name}-{column.name}-{row}"[-length:]


def contents(engine: sa.Engine) -> dict[str, list[dict[str, Any]]]:
    """Every table's rows; JSON as Python values."""
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        return {
            name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for name, table in tables.tables.items()
            if name != "alembic_version"
        }


def fill(engine: sa.Engine) -> None:
    """Rows in every table there is, by what the database itself says about its columns."""
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        for table in tables.sorted_tables:
            if table.name != "alembic_version":
                rows = [{each.name: value(each, row) for each in table.columns} for row in range(ROWS)]
                connection.execute(sa.insert(table), rows)


def test_every_revision_is_tried() -> None:
    assert HEAD == "0013"
    assert sorted(EARLIER) == [f"{number:04}" for number in range(1, int(HEAD))]


@pytest.mark.parametrize("revision", EARLIER)
def test_rows_of_an_earlier_schema_are_intact_in_todays(engine: sa.Engine, database: Path | str, revision: str) -> None:
    with engine.begin() as connection:
        migrate(connection, revision)
    fill(engine)
    before = contents(engine)
    assert all(len(rows) == ROWS for rows in before.values())

    open_database(database).close()
    after = contents(engine)
    together = after["contributions"]
    split = {"contributions": together[:ROWS], "trunk_contributions": together[ROWS:]}
    if "kind" not in before["contributions"][0]:
        assert [row["number"] for row in together] == list(range(1, len(together) + 1)), "numbers are cursors of pages"
        assert {row["kind"] for row in split["contributions"]} == {"router"}
        assert {row["kind"] for row in split["trunk_contributions"]} <= {"trunk"}
    for table, rows in before.items():
        found = split.get(table) or after[table]
        assert len(found) == ROWS
        for old, new in zip(rows, found, strict=True):
            kept = {RENAMED.get((table, name), name): value for name, value in old.items()}
            if table == "trunk_contributions":
                del kept["number"]
            assert {name: new[name] for name in kept} == kept
    assert after.keys() == set(Base.metadata.tables)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


@pytest.mark.parametrize("revision", EARLIER)
def test_the_coordinator_writes_beside_rows_of_an_earlier_schema(
    engine: sa.Engine, database: Path | str, revision: str
) -> None:
    """Numbers go on after those that are there, and references hold."""
    with engine.begin() as connection:
        migrate(connection, revision)
        connection.execute(sa.text("INSERT INTO owners (name, created) VALUES ('old', '2026-01-01 00:00:00')"))
        connection.execute(sa.text("INSERT INTO domains (name, owner) VALUES ('law', 'old')"))
    opened = open_database(database)
    with opened.engine.begin() as connection:
        owners = Base.metadata.tables["owners"]
        connection.execute(sa.insert(owners).values(name="new", created=datetime(2026, 2, 1)))
        assert connection.execute(sa.select(owners.c.number).order_by(owners.c.number)).scalars().all() == [1, 2]
    with pytest.raises(sa.exc.DBAPIError), opened.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM owners WHERE name = 'old'"))
    opened.close()


def test_open_uploads_of_an_earlier_schema_are_found_by_their_file(engine: sa.Engine, database: Path | str) -> None:
    with engine.begin() as connection:
        migrate(connection, "0004")
    fill(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("""UPDATE uploads SET request = '{"sha256": "abc"}' WHERE id = 2"""))
    open_database(database).close()
    assert {row["id"]: row["sha256"] for row in contents(engine)["uploads"]} == {1: "", 2: "abc", 3: ""}
