"""Files of the worker's machine on the other nodes of a cluster: a node that doesn't see the same files gets copies."""

import hashlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, Self

from filelock import FileLock

from moerge.errors import MoergeError
from moerge.files import atomic_file, cache_folder, file_sha256, private_folder
from moerge_proto.digests import digest_of

_PIECE = 2**25  # bytes sent at a time
_STEP, _SAMPLE = 2**24, 2**12
_KEPT_SECONDS = 7 * 86400.0


@dataclass(frozen=True)
class SeenFile:
    """A file as a machine sees it.

    Attributes:
        path: absolute.
        size: bytes.
        mark: SHA-256 of its first 16 MiB, and of 4 KiB of each further 16 MiB and of its end.
    """

    path: Path
    size: int
    mark: str

    def is_here(self) -> bool:
        """Tell whether this machine sees the same file."""
        try:
            return seen(self.path) == self
        except OSError:
            return False


def seen(path: Path) -> SeenFile:
    """The file as this machine sees it."""
    size, mark = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        mark.update(file.read(_STEP))
        for start in [*range(_STEP, size, _STEP), max(0, size - _SAMPLE)]:
            file.seek(start)
            mark.update(file.read(_SAMPLE))
    return SeenFile(_absolute(path), size, mark.hexdigest())


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # links stay


@dataclass(frozen=True)
class Original:
    """A file, or a folder of files, of the worker's machine; its path is absolute."""

    path: Path
    files: tuple[SeenFile, ...]

    @classmethod
    def of(cls, path: Path, files: Iterable[Path]) -> Self:
        return cls(_absolute(path), tuple(map(seen, files)))


class Source(Protocol):
    """Reads the files of the worker's machine. `tell` records the progress of copies."""

    def sha256(self, path: Path) -> str: ...
    def piece(self, path: Path, start: int) -> bytes: ...
    def tell(self, host: str, path: Path, done: int, total: int) -> None: ...


class Reader:
    """The source, on the worker's machine. It reads only `paths`; its methods may run at the same time."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths, self._lock = set(paths), threading.Lock()
        self._sha256 = cache(file_sha256)
        self._copies: dict[tuple[str, Path], tuple[int, int]] = {}

    def sha256(self, path: Path) -> str:
        with self._lock:
            return self._sha256(self._known(path))

    def piece(self, path: Path, start: int) -> bytes:
        with self._known(path).open("rb") as file:
            file.seek(start)
            return file.read(_PIECE)

    def tell(self, host: str, path: Path, done: int, total: int) -> None:
        self._copies[host, path] = done, total

    def copies(self) -> dict[tuple[str, Path], tuple[int, int]]:
        """(host, path) -> copied bytes and all bytes."""
        return dict(self._copies)

    def _known(self, path: Path) -> Path:
        if path not in self._paths or not os.access(path, os.R_OK):
            todo = "start Ray on the worker's machine as the worker's user, and in the same container"
            raise MoergeError("Ray can't read this file on the worker's machine", where=str(path), todo=todo)
        return path


def here(original: Original, source: Source) -> Path:
    """The original's path on this machine: its own if this machine sees the same files, or that of a copy.

    Copies are in private folders of the user's cache, named by their content. Those unused for a week are removed.

    Raises:
        MoergeError: the source can't read a file.
        OSError: such as of a full disk; names the copy.
    """
    path, files = original.path, original.files
    if all(file.is_here() for file in files):
        return path
    host, total, done = socket.gethostname(), sum(file.size for file in files), 0
    source.tell(host, path, done, total)
    names = {file.path.name: source.sha256(file.path) for file in files}
    folder = cache_folder() / "nodes" / digest_of({"files": dict(names)})[:32]
    private_folder(folder)
    with FileLock(folder.with_suffix(".lock")):
        for file in files:
            copy = folder / file.path.name
            if not copy.is_file():
                with atomic_file(copy) as out:
                    for start in range(0, file.size, _PIECE):
                        out.write(source.piece(file.path, start))
                        source.tell(host, path, done + out.tell(), total)
            done += file.size
    os.utime(folder)
    _remove_unused(folder.parent)
    return folder / path.name if files[0].path == path else folder


def _remove_unused(folder: Path) -> None:
    for item in folder.iterdir():
        if item.is_dir() and time.time() - item.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(item, ignore_errors=True)
