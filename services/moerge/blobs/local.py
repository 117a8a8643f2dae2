"""Blobs in a local folder: `<first two digits>/<digest>`, mode 0444, complete or absent."""

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from moerge.direct import direct_file
from moerge.files import sync_folder
from moerge_proto.messages import FileEntry


class LocalBlobs:
    """A folder of blobs. Everything that is written gets its name from its content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._incoming = folder / "incoming"

    def path(self, digest: str) -> Path:
        """Where the blob lies, or would lie."""
        return self._folder / digest[:2] / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def put(self, name: str, write: Callable[[BinaryIO], str]) -> FileEntry:
        """Runs `write`, which fills the file and returns its SHA-256; then the blob is there, under that digest.

        A `write` that raises leaves nothing. The same content twice is stored once.
        """
        self._incoming.mkdir(parents=True, exist_ok=True)
        temporary = self._incoming / secrets.token_hex(16)
        try:
            with direct_file(temporary) as out:
                digest = write(out)
            size = temporary.stat().st_size
            if not self.has(digest):
                temporary.chmod(0o444)
                target = self.path(digest)
                target.parent.mkdir(exist_ok=True)
                temporary.replace(target)
                sync_folder(target.parent)
            return FileEntry(name=name, sha256=digest, size=size)
        finally:
            temporary.unlink(missing_ok=True)

    def link(self, digest: str, target: Path) -> None:
        """Makes `target` a hard link to the blob; a `target` that is there already stays."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            os.link(self.path(digest), target)

    def delete(self, digest: str) -> None:
        """Removes a blob; one that isn't there is no error."""
        self.path(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[tuple[str, int]]:
        """Digest and size in bytes of every blob."""
        for path in self._folder.glob("??/*"):
            yield path.name, path.stat().st_size

    def probe(self) -> None:
        """Writes and removes a file.

        Raises:
            OSError: the folder can't be written.
        """
        self._incoming.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._incoming) as file:
            file.write(b"probe")

    def sweep(self) -> None:
        """Removes what writers that were killed left behind. Call it before any writer starts."""
        for leftover in self._incoming.glob("*"):
            leftover.unlink()
