"""The interfaces of a store of blobs and of a store of uploads' chunks."""

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from moerge.files import sync_folder
from moerge_proto.messages import FileEntry
from moerge_proto.ranges import Source


class Blobs(Protocol):
    """Files named by their SHA-256: read-only, complete or absent.

    `local`, `source`, `content` and `link` raise FileNotFoundError if the blob is absent.
    """

    lasting: bool
    """Whether files of `local` and `link` stay. Otherwise they stay for an hour after their last use, and until every
    `holding` that was open then has ended."""

    def has(self, digest: str) -> bool: ...

    def size(self, digest: str) -> int | None:
        """Bytes; None if it is absent."""

    def put(self, name: str, write: Callable[[BinaryIO], str]) -> FileEntry:
        """Runs `write`, which fills the file and returns its SHA-256, and stores the blob under that digest.

        A `write` that raises leaves nothing. Equal content is stored once.
        """

    def local(self, digest: str) -> Path:
        """A complete local file with the blob's content, for small files and for readers of paths."""

    def source(self, digest: str) -> Source:
        """Its local file, or ranges of a blob elsewhere, which aren't compared with the digest."""

    def content(self, digest: str) -> Iterator[bytes]:
        """The blob's bytes, read from the store itself."""

    def link(self, digest: str, target: Path) -> None:
        """Makes `target` a link to the blob's local file; an existing `target` stays."""

    def delete(self, digest: str) -> None:
        """Removes the blob, if it exists."""

    def digests(self) -> Iterator[tuple[str, int]]:
        """Digest and bytes of every blob."""

    def url(self, digest: str) -> str | None:
        """A URL from which anyone may download the blob for an hour, or None if the store has none."""

    def holding(self) -> AbstractContextManager[None]:
        """While it is open, every file that `local` returns stays."""

    def probe(self) -> None:
        """Raises OSError or MoergeError unless blobs can be written now."""

    def sweep(self) -> None:
        """Removes leftovers of killed writers. Call it before any writer starts."""

    def prune(self) -> None:
        """Removes local files of blobs that another process has deleted. Safe at any time."""


class Chunks(Protocol):
    """Pieces of open uploads, named by upload and SHA-256: complete or absent."""

    incoming: Path
    """Folder for incoming chunks, on the file system of `keep`."""

    def held(self, upload: int) -> set[str]: ...

    def keep(self, upload: int, sha256: str, file: Path) -> None:
        """Stores a complete local file as the chunk; it may move the file."""

    def open(self, upload: int, sha256: str) -> BinaryIO:
        """The chunk, for reading; raises FileNotFoundError if it is absent."""

    def remove(self, upload: int) -> None: ...

    def sweep(self) -> None:
        """Removes partial chunks of a killed process. Call it before any chunk arrives."""


def show(blobs: Blobs, files: Iterable[FileEntry], folder: Path) -> None:
    """Makes `folder` a folder of links to the files' blobs. It appears whole; an existing folder is completed."""
    if folder.is_dir():
        for file in files:
            blobs.link(file.sha256, folder / file.name)
        return
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        for file in files:
            blobs.link(file.sha256, temporary / file.name)
        sync_folder(temporary)
        try:
            temporary.replace(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another thread was faster
                raise
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
