"""The database, one suite over SQLite and PostgreSQL: transactions mean the same on both."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from moerge_coordinator.domain.tokens import make_token
from moerge_coordinator.rest.audit import forget
from moerge_coordinator.storage.database import Database, open_database
from moerge_coordinator.storage.tables import AuditRow, Base, OwnerRow, TokenRow
from moerge_proto.owners import NewToken, Role
from support.servers import Postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "database"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def opened(database: Path | str) -> Iterator[Database]:
    with closing(open_database(database)) as result:
        yield result


def owners(opened: Database) -> list[str]:
    with opened.reading() as session:
        return list(session.scalars(select(OwnerRow.name).order_by(OwnerRow.number)))


def test_migrations_make_exactly_the_tables(opened: Database) -> None:
    with opened.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_many_that_open_it_at_once_migrate_it_once(database: Path | str) -> None:
    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(lambda _: open_database(database), range(4)))
    assert [owners(engine) for engine in engines] == [[]] * 4
    for engine in engines:
        engine.close()


def test_a_transaction_that_fails_did_nothing(opened: Database) -> None:
    def write_half() -> None:
        with opened.transaction("test") as session:
            session.add(OwnerRow(name="gone"))
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert owners(opened) == []


def test_writers_are_one_at_a_time_over_all_processes(database: Path | str) -> None:
    """Each adds the owner that follows those it sees, which two at once would do twice."""
    engines = [open_database(database) for _ in range(3)]

    def add(number: int) -> None:
        with engines[number % 3].transaction("test") as session:
            seen = session.scalar(select(func.count()).select_from(OwnerRow))
            session.add(OwnerRow(name=f"owner-{seen}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(60)))
    assert owners(engines[0]) == [f"owner-{number}" for number in range(60)]
    for engine in engines:
        engine.close()


def test_a_reader_waits_for_no_writer_and_sees_one_moment(opened: Database) -> None:
    with opened.transaction("test") as writer:
        writer.add(OwnerRow(name="first"))
    with opened.reading() as session:
        before = session.scalars(select(OwnerRow.name)).all()
        with opened.transaction("test") as writer:
            writer.add(OwnerRow(name="second"))
            writer.flush()
            assert owners(opened) == ["first"]
        assert session.scalars(select(OwnerRow.name)).all() == before
    assert owners(opened) == ["first", "second"]


def test_a_reader_can_not_write_and_a_writer_after_it_can(opened: Database) -> None:
    insert = text("INSERT INTO owners (name, created) VALUES ('never', '2026-01-01 00:00:00')")
    for _ in range(3):
        with pytest.raises(DBAPIError, match=r"read-?only"), opened.reading() as session:
            session.execute(insert)
    with opened.transaction("test") as session:
        session.add(OwnerRow(name="written"))
    assert owners(opened) == ["written"]


def test_a_token_is_read_while_another_transaction_writes(opened: Database) -> None:
    with opened.transaction("test") as session:
        token = make_token(session, NewToken(role=Role.READER))
    with opened.transaction("test") as writer:
        writer.add(OwnerRow(name="busy"))
        writer.flush()
        with opened.reading() as session:
            assert session.get_one(TokenRow, token.id).role == Role.READER


@pytest.mark.parametrize("statement", ["UPDATE audit SET path = ''", "DELETE FROM audit"])
def test_the_audit_log_can_not_be_changed(opened: Database, statement: str) -> None:
    with opened.transaction("test") as session:
        session.add(AuditRow(request="1", method="POST", path="/v1/owners", status=201))
    with pytest.raises(DBAPIError, match="append-only"), opened.transaction("test") as session:
        session.execute(text(statement))
    with opened.reading() as session:
        assert session.scalars(select(AuditRow.path)).all() == ["/v1/owners"]


def test_old_rows_of_the_audit_log_can_be_removed(opened: Database) -> None:
    with opened.transaction("test") as session:
        for days in (0, 31, 50):
            created = opened.clock() - timedelta(days=days)
            session.add(AuditRow(request=f"{days}", method="POST", path="/v1/owners", status=201, created=created))
    forget(opened, 40)
    with opened.reading() as session:
        assert session.scalars(select(AuditRow.request)).all() == ["0", "31"]
    forget(opened, 30)
    with opened.reading() as session:
        assert session.scalars(select(AuditRow.request)).all() == ["0"]


def test_a_reference_to_nothing_is_refused(opened: Database) -> None:
    insert = text("INSERT INTO domains (name, owner) VALUES ('law', 'nobody')")
    with pytest.raises(DBAPIError), opened.transaction("test") as session:
        session.execute(insert)


def test_a_writer_that_ends_lets_the_next_one_go_on(opened: Database) -> None:
    begun, done = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        with opened.transaction("test") as session:
            session.add(OwnerRow(name="second"))
        done.set()

    with opened.transaction("test") as session:
        session.add(OwnerRow(name="first"))
        session.flush()
        thread = threading.Thread(target=wait)
        thread.start()
        begun.wait()
        assert not done.wait(0.3)
    thread.join()
    assert owners(opened) == ["first", "second"]


def test_a_claim_is_held_by_one_replica_at_a_time(postgres: Postgres) -> None:
    one, other = (open_database(url) for url in [postgres.database()] * 2)
    claimed = threading.Event()

    def claim() -> None:
        with other.claim("commit law"):
            claimed.set()

    with one.claim("commit law"):
        with other.claim("commit art"):
            assert owners(one) == []
        thread = threading.Thread(target=claim)
        thread.start()
        assert not claimed.wait(0.3)
    thread.join()
    assert claimed.is_set()
    one.close()
    other.close()
