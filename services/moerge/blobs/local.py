"""Blobs in a local folder: `<first two digits>/<digest>`, mode 0444, complete or absent. Another folder has chunks."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from moerge.blobs.direct_io import direct_file
from moerge.files import sync_folder
from moerge_proto.messages import FileEntry
from moerge_proto.ranges import Source

_PIECE = 2**22


class LocalBlobs:
    """A folder of blobs, each named by its content."""

    lasting = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._incoming = folder / "incoming"

    def path(self, digest: str) -> Path:
        """The blob's path, present or not."""
        return self._folder / digest[:2] / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def size(self, digest: str) -> int | None:
        return self.path(digest).stat().st_size if self.has(digest) else None

    def put(self, name: str, write: Callable[[BinaryIO], str]) -> FileEntry:
        with self.written(name, write) as (entry, file):
            self.adopt(entry.sha256, file)
            return entry

    @contextmanager
    def written(self, name: str, write: Callable[[BinaryIO], str]) -> Iterator[tuple[FileEntry, Path]]:
        """The file that `write` fills, which is not a blob yet; it is removed at the end."""
        self._incoming.mkdir(parents=True, exist_ok=True)
        temporary = self._incoming / secrets.token_hex(16)
        try:
            with direct_file(temporary) as out:
                digest = write(out)
            yield FileEntry(name=name, sha256=digest, size=temporary.stat().st_size), temporary
        finally:
            temporary.unlink(missing_ok=True)

    def adopt(self, digest: str, file: Path) -> None:
        """Moves a file of the same file system into the store."""
        if not self.has(digest):
            file.chmod(0o444)
            target = self.path(digest)
            target.parent.mkdir(exist_ok=True)
            file.replace(target)
            sync_folder(target.parent)

    def local(self, digest: str) -> Path:
        if not self.has(digest):
            raise FileNotFoundError(self.path(digest))
        return self.path(digest)

    def source(self, digest: str) -> Source:
        return self.local(digest)

    def content(self, digest: str) -> Iterator[bytes]:
        with self.path(digest).open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    def link(self, digest: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            os.link(self.path(digest), target)

    def delete(self, digest: str) -> None:
        self.path(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[tuple[str, int]]:
        for path in self._folder.glob("??/*"):
            yield path.name, path.stat().st_size

    def url(self, digest: str) -> str | None:
        return None

    def holding(self) -> AbstractContextManager[None]:
        return nullcontext()

    def probe(self) -> None:
        self._incoming.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._incoming) as file:
            file.write(b"probe")

    def sweep(self) -> None:
        for leftover in self._incoming.glob("*"):
            leftover.unlink()

    def prune(self) -> None:
        pass  # the folder is the store


class LocalChunks:
    """A folder of chunks: `<upload>/<digest>`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.incoming = folder / "incoming"

    def held(self, upload: int) -> set[str]:
        return {path.name for path in (self._folder / str(upload)).glob("[!.]*")}

    def keep(self, upload: int, sha256: str, file: Path) -> None:
        target = self._folder / str(upload) / sha256
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
        sync_folder(target.parent)

    def open(self, upload: int, sha256: str) -> BinaryIO:
        return (self._folder / str(upload) / sha256).open("rb")

    def remove(self, upload: int) -> None:
        shutil.rmtree(self._folder / str(upload), ignore_errors=True)

    def sweep(self) -> None:
        for leftover in self.incoming.glob("*"):
            leftover.unlink()
