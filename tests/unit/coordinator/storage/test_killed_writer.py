"""A SQLite database whose writer was killed within a transaction can be read, checked and copied."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from moerge_coordinator.operation.backups import copy_database
from moerge_coordinator.storage.workflow_rows import foreign_rows

WRITER = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for text in ("PRAGMA cache_size = 1", "BEGIN", "UPDATE workflow_status SET serialization = 'py_pickle'"):
    connection.execute(text)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """With a journal that the next writer must roll back."""
    path = tmp_path / "workflows.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE workflow_status (id TEXT, serialization TEXT, inputs TEXT)")
        rows = [(str(number), "portable_json", 500 * "x") for number in range(2000)]
        connection.executemany("INSERT INTO workflow_status VALUES (?, ?, ?)", rows)
    done = subprocess.run([sys.executable, "-c", WRITER, path], check=False)  # noqa: S603  # our own script
    assert done.returncode == -signal.SIGKILL
    assert os.path.getsize(f"{path}-journal") > 0
    return path


def test_its_rows_are_those_before_the_transaction(database: Path) -> None:
    assert list(foreign_rows(f"sqlite:///{database}")) == []


def test_a_copy_has_the_rows_before_the_transaction(database: Path, tmp_path: Path) -> None:
    copy_database(database, tmp_path / "copy.sqlite")
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as connection:
        assert connection.execute("SELECT DISTINCT serialization FROM workflow_status").fetchall() == [
            ("portable_json",)
        ]
