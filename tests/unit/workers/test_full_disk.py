"""A full disk is an error that names the place, whoever meets it first."""

import errno
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge_workers.loop import naming_full_disk


def test_only_a_full_database_is_reported_as_a_full_disk(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "small.sqlite")) as database:
        database.execute("PRAGMA max_page_count = 4")
        with pytest.raises(MoergeError, match="the disk is full") as caught, naming_full_disk(tmp_path):
            database.execute("CREATE TABLE large AS SELECT zeroblob(1000000)")
        assert str(tmp_path / "contributions") in caught.value.where
        with pytest.raises(sqlite3.OperationalError), naming_full_disk(tmp_path):
            database.execute("SELECT 1 FROM nothing")


def test_file_without_disk_space_is_named_and_removed(tmp_path: Path) -> None:
    """Linux keeps /dev/full for this: what is written to it meets a full disk."""
    path = tmp_path / "file"
    with (
        pytest.raises(MoergeError, match="the disk is full") as caught,
        naming_full_disk(tmp_path),
        atomic_file(path),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")
    assert caught.value.where == str(path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PermissionError), naming_full_disk(tmp_path):
        raise PermissionError(errno.EACCES, "no")
