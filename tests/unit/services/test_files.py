"""Files on file systems that can't do everything."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest
from filelock import Timeout

from moerge.errors import MoergeError
from moerge.files import alone, atomic_file, locked, sync_folder, user_path
from moerge.masks.keeper import KEY, Keeper, make_key
from moerge_coordinator.storage.database import open_database
from moerge_workers.outgoing.history import History

SERVICES = Path(__file__).parents[3]


def fail_to_sync(monkeypatch: pytest.MonkeyPatch, number: int, *, folders: bool) -> None:
    """The system's answer to a sync of folders, or of files."""
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == folders:
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def refuse_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The system's answer to each request for a lock."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_folder_that_can_t_be_synced_is_used() -> None:
    sync_folder(Path("/proc/self"))  # its fsync is EINVAL


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS])
def test_files_are_written_where_folders_can_t_be_synced(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_sync(monkeypatch, number, folders=True)
    with atomic_file(tmp_path / "file") as out:
        out.write(b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_a_folder_that_can_t_be_opened_for_reading_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refused)  # root may read every folder
    sync_folder(tmp_path)


def test_a_fault_of_the_disk_at_a_folder_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_sync(monkeypatch, errno.EIO, folders=True)
    with pytest.raises(OSError, match="Input/output error") as raised:
        sync_folder(tmp_path)
    assert raised.value.filename == str(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EINVAL])
def test_a_file_that_can_t_be_synced_doesn_t_appear(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_sync(monkeypatch, number, folders=False)
    with pytest.raises(OSError, match=os.strerror(number)), atomic_file(tmp_path / "file") as out:
        out.write(b"whole")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL])
def test_a_folder_without_locks_is_named_with_the_remedy(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_locks(monkeypatch, number)
    with pytest.raises(MoergeError, match="can't lock files") as raised, alone(tmp_path / "merged.work"):
        pass
    assert raised.value.where == str(tmp_path / "merged.work")
    assert "local disk" in raised.value.todo


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_sqlite_is_not_opened_where_it_can_t_lock(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lockf(file: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    make_key(tmp_path)
    monkeypatch.setattr(fcntl, "lockf", lockf)
    for opened in (lambda: Keeper(tmp_path), lambda: History(tmp_path), lambda: open_database(tmp_path / "database")):
        with pytest.raises(MoergeError, match="can't lock files") as raised:
            opened()
        assert raised.value.where == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [KEY]


def test_other_faults_of_a_lock_are_the_system_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_locks(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        locked(tmp_path / "lock")


def test_a_lock_is_one_process_s_until_it_ends(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"), pytest.raises(Timeout):
        locked(tmp_path / "lock")
    with locked(tmp_path / "lock", 1):
        pass


def test_locks_are_taken_in_one_place() -> None:
    packages = ("proto", "services", "workers", "coordinator")
    modules = [path for package in packages for path in (SERVICES / package).rglob("*.py")]
    assert [path.name for path in modules if "FileLock(" in path.read_text("utf-8")] == ["files.py"]


def test_a_path_may_begin_with_the_user_s_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [user_path("~"), user_path(Path("~/a"))] == [tmp_path, tmp_path / "a"]
    assert [str(user_path(text)) for text in ("a~", "./~", "~nobody-here/a")] == ["a~", "~", "~nobody-here/a"]
