"""A caller is told the kind of the coordinator's own failure, and nothing that its text may hold."""

import errno
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from moerge_coordinator.problems import failure


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("password=secret"), 500), (OSError(errno.ENOSPC, "no space", "/home/secret"), 507)],
)
def test_a_failure_s_text_stays_here(error: Exception, status: int) -> None:
    problem = failure(error)
    assert problem.status == status
    assert "secret" not in problem.model_dump_json()


def test_a_full_database_is_a_full_storage(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'small.sqlite'}")
    with engine.begin() as connection:
        connection.execute(text("PRAGMA max_page_count = 4"))
        with pytest.raises(OperationalError) as caught:
            connection.execute(text("CREATE TABLE large AS SELECT zeroblob(1000000)"))
    engine.dispose()
    assert failure(caught.value).type == "urn:moerge:problem:storage-full"


def test_a_locked_database_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "busy.sqlite"
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OperationalError) as caught, engine.begin() as connection:
            connection.execute(text("CREATE TABLE late (number INTEGER)"))
    engine.dispose()
    assert (failure(caught.value).status, failure(caught.value).detail) == (503, "the database is busy")
