"""Files that are complete or absent, and their digests."""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from moerge.errors import CheckpointError, MoergeError

LOCK = "lock"
"""The file that locks a work folder."""
_TOKEN = 4  # bytes, which keep temporary names apart
_UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR)
"""Errors of file systems that can't sync a folder. EIO isn't one: entries may be lost."""
_UNLOCKED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems without locks."""


@contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Opens a temporary sibling for writing; on success it is fsynced and renamed to `path`, otherwise removed.

    Only this user may read a `private` file. Its OSErrors, such as a full disk, name `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(_TOKEN)}.tmp")
    try:
        with open(temporary, "wb", opener=_private if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def user_path(path: str | Path) -> Path:
    """A path that may begin with ~, the user's home. Shells leave the one of NAME=~/folder and of settings."""
    return Path(os.path.expanduser(path))


def unfinished(path: Path) -> list[Path]:
    """The temporary files that killed writers of a file left; the file's name may be a pattern."""
    return sorted(path.parent.glob(f".{path.name}.{'[0-9a-f]' * 2 * _TOKEN}.tmp"))


def linked(file: Path, path: Path) -> bool:
    """Makes `path` a hard link to `file`, if the file system can."""
    try:
        os.link(file, path)
    except OSError:
        return False
    return True


def work_folder(out: Path) -> Path:
    """The folder of unfinished work on `out`; not in the output, because engines read all files there."""
    if out.name in ("", ".."):
        todo = "name the folder itself, such as merged or ../merged"
        raise MoergeError("the folder beside it with the statistics needs a name", where=str(out), todo=todo)
    return out.with_name(f"{out.name}.work")


def require_new(out: Path) -> None:
    """Requires a new or empty folder, or that of a run that was killed at its end."""
    begun = out.is_dir() and work_folder(out).is_dir()
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not begun):
        raise MoergeError("the folder is not empty", where=str(out), todo="name a new folder, or remove this one")


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Makes a private work folder, locks it against other runs, and removes it at the end if it is empty."""
    private_folder(work)
    try:
        lock = locked(work / LOCK)
    except Timeout as error:
        raise MoergeError("another run uses this folder", where=str(work), todo="wait for it") from error
    with lock:
        try:
            yield
        finally:
            if [path.name for path in work.iterdir()] == [LOCK]:
                shutil.rmtree(work)


def locked(path: Path, timeout: float = 0) -> AbstractContextManager[object]:
    """Locks a file until the end of a `with` statement. Waits `timeout` seconds, or without limit if it is negative.

    Raises:
        Timeout: another process has the lock.
        MoergeError: the file system has no locks.
    """
    try:
        return FileLock(path).acquire(timeout)
    except Timeout:
        raise
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _UNLOCKED:
            raise
        raise _unlocked(path.parent, error) from error


def require_locks(folder: Path) -> None:
    """Requires a file system with locks, without which SQLite waits in vain.

    Raises:
        MoergeError: it has none.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as SQLite locks
        except OSError as error:
            if error.errno not in _UNLOCKED:
                raise
            raise _unlocked(folder, error) from error


def _unlocked(folder: Path, error: Exception) -> MoergeError:
    what = f"its file system can't lock files: {getattr(error, 'strerror', None) or error}"
    todo = (
        "name a folder on a local disk, or mount this one with locks; on NFS 3 start rpc.statd, or mount with "
        "local_lock=all if only this machine uses the folder"
    )
    return MoergeError(what, where=str(folder), todo=todo)


def sync_folder(folder: Path) -> None:
    """Makes the folder's entries survive a power cut, if its file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = str(folder)
        if error.errno not in _UNSYNCED:
            raise


def private_folder(folder: Path) -> None:
    """Makes a folder that only this user may enter, and removes others' access to an existing one."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if stat.S_IMODE(folder.stat().st_mode) == 0o700:
        return
    try:
        folder.chmod(0o700)
    except PermissionError as error:
        what, todo = "other users may read it, and its mode can't be changed", "name a folder inside it, or own it"
        raise MoergeError(what, where=str(folder), todo=todo) from error


def require_own(path: Path) -> Path:
    """The path of a folder's file, which may be missing; CheckpointError for a link out of the folder.

    Otherwise a folder from elsewhere could publish its user's private files. Links of the hub's cache to its blobs are
    followed.
    """
    real, folder = Path(os.path.realpath(path)), path.parent.resolve()
    blobs = [place.with_name("blobs") for place in folder.parents if place.name == "snapshots"]
    if real.is_relative_to(folder) or real.parent in blobs:
        return path
    todo = "replace the link by a copy of the file, if the file belongs to the model; otherwise remove the link"
    raise CheckpointError(f"a link out of the folder, to {real}", where=str(path), todo=todo)


def require_small(path: Path, most: int) -> None:
    if (size := path.stat().st_size) > most:
        raise CheckpointError(f"expected at most {most} bytes, found {size}", where=str(path))


def json_object(path: Path, most: int) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
        CheckpointError: it has more than `most` bytes, or isn't a JSON object.
    """
    require_small(path, most)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"can't be read as JSON: {error}", where=str(path)) from error
    if not isinstance(content, dict):
        raise CheckpointError("not a JSON object", where=str(path))
    return content


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_of_full_disk(error: BaseException | None) -> bool:
    """Tell whether an error of the system or of SQLite means a full disk, quota or file."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"


def cache_folder() -> Path:
    """Folder of files kept between runs: texts, trained experts, tools."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moerge"
