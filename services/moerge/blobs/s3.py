"""Blobs and chunks in an S3-compatible store, with a bounded local cache."""

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from math import inf
from pathlib import Path
from typing import BinaryIO

from moerge.blobs.local import LocalBlobs
from moerge.blobs.objects import PART, S3, SMALL, Keys, require_store
from moerge.errors import MoergeError
from moerge_proto.messages import FileEntry
from moerge_proto.ranges import Source

__all__ = ["S3", "S3Blobs", "S3Chunks", "require_store"]

_PARTS_READ_AT_ONCE = 4
_KEPT_SECONDS = 3600.0
_CLOCKS_DIFFER_SECONDS = 1.0  # a file system's clock lags behind the process's


@dataclass(frozen=True)
class _Object:
    """A blob's object as `Ranges`: a read requests parts of 8 MiB, a few at once."""

    keys: Keys
    name: str
    size: int

    def read(self, start: int, out: memoryview) -> int:
        count = max(0, min(len(out), self.size - start))

        def fetch(at: int) -> None:
            length = min(PART, count - at)
            out[at : at + length] = self.keys.part(self.name, start + at, length)

        with ThreadPoolExecutor(_PARTS_READ_AT_ONCE) as threads:
            deque(threads.map(fetch, range(0, count, PART)), maxlen=0)
        return count

    def close(self) -> None:
        pass  # no connection is open


class S3Blobs:
    """A bucket's blobs under `blobs/<digest>`. `local` fetches them into a cache of at most `cache_bytes`.

    A blob that is put stays in the cache only if it is small; larger ones are read in ranges. Files used in the last
    hour, or during an open `holding`, are never evicted.
    """

    lasting = False

    def __init__(self, place: S3, cache: Path, cache_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._keys, self._probe = Keys(place, "blobs"), Keys(place, "probe")
        self._folder, self._cache, self._cache_bytes = cache, LocalBlobs(cache), cache_bytes
        self._clock = clock
        self._holdings: list[float] = []
        self._lock = threading.Lock()

    def content(self, digest: str) -> Iterator[bytes]:
        return self._keys.read(digest)

    def probe(self) -> None:
        self._probe.overwrite("written", b"")

    def has(self, digest: str) -> bool:
        return self.size(digest) is not None

    def size(self, digest: str) -> int | None:
        return self._keys.size(digest)

    def put(self, name: str, write: Callable[[BinaryIO], str]) -> FileEntry:
        with self._cache.written(name, write) as (entry, file):
            self._keys.create(entry.sha256, file)
            if entry.size <= SMALL:
                self._cache.adopt(entry.sha256, file)
                self._touch(entry.sha256)
        self._make_room()
        return entry

    def local(self, digest: str) -> Path:
        if not self._touch(digest):
            self._cache.put(digest, lambda out: self._fetch(digest, out))
            self._touch(digest)
            self._make_room()
        return self._cache.path(digest)

    def source(self, digest: str) -> Source:
        if (size := self.size(digest)) is None:
            raise FileNotFoundError(self._keys.key(digest))
        return _Object(self._keys, digest, size)

    def link(self, digest: str, target: Path) -> None:
        path = self.local(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            target.symlink_to(path.absolute())

    def delete(self, digest: str) -> None:
        self._keys.delete(digest)
        self._cache.delete(digest)

    def digests(self) -> Iterator[tuple[str, int]]:
        return self._keys.names()

    def url(self, digest: str) -> str | None:
        return self._keys.url(digest)

    @contextmanager
    def holding(self) -> Iterator[None]:
        since = self._clock()
        with self._lock:
            self._holdings.append(since)
        try:
            yield
        finally:
            with self._lock:
                self._holdings.remove(since)

    def sweep(self) -> None:
        self._cache.sweep()
        self.prune()

    def prune(self) -> None:
        for _, _, path in self._cached():
            if not self.has(path.name):
                with self._lock, suppress(FileNotFoundError):
                    # A file that was added or used since may not be in the store yet.
                    if path.stat().st_mtime < min(self._holdings, default=inf) - _CLOCKS_DIFFER_SECONDS:
                        path.unlink()

    def _cached(self) -> Iterator[tuple[float, int, Path]]:
        """Last use, size in bytes and path of every cached file."""
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                stat = path.stat()
                yield stat.st_mtime, stat.st_size, path

    def _fetch(self, digest: str, out: BinaryIO) -> str:
        sha256 = hashlib.sha256()
        for piece in self._keys.read(digest):
            sha256.update(piece)
            out.write(piece)
        if sha256.hexdigest() != digest:
            todo = "restore the object from a backup; the object store damaged it"
            raise MoergeError(f"its SHA-256 is {sha256.hexdigest()}", where=self._keys.key(digest), todo=todo)
        return digest

    def _touch(self, digest: str) -> bool:
        """Records a use of the cached file; False if there is none."""
        now = self._clock()
        with self._lock, suppress(FileNotFoundError):
            os.utime(self._cache.path(digest), (now, now))
            return True
        return False

    def _make_room(self) -> None:
        """Evicts the least recently used files, until the cache is within its bound or all files are in use."""
        with self._lock:
            horizon = min([self._clock() - _KEPT_SECONDS, *self._holdings])
            files = sorted(self._cached())
            total = sum(size for _, size, _ in files)
            for used, size, path in files:
                if total <= self._cache_bytes or used > horizon:
                    return
                path.unlink(missing_ok=True)
                total -= size


class S3Chunks:
    """A bucket's chunks under `uploads/<upload>/<digest>`."""

    def __init__(self, place: S3, incoming: Path) -> None:
        self._keys = Keys(place, "uploads")
        self.incoming = incoming

    def held(self, upload: int) -> set[str]:
        return {name for name, _ in self._keys.names(str(upload))}

    def keep(self, upload: int, sha256: str, file: Path) -> None:
        self._keys.create(f"{upload}/{sha256}", file)

    def open(self, upload: int, sha256: str) -> BinaryIO:
        return BytesIO(b"".join(self._keys.read(f"{upload}/{sha256}")))

    def remove(self, upload: int) -> None:
        if names := [f"{upload}/{name}" for name in self.held(upload)]:
            self._keys.delete(*names)

    def sweep(self) -> None:
        for leftover in self.incoming.glob("*"):
            leftover.unlink()
