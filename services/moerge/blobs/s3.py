"""Blobs and chunks in an S3-compatible store, with a bounded local cache. Credentials come from AWS_* variables."""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import BytesIO
from math import inf
from pathlib import Path
from typing import BinaryIO

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store
from pydantic import BaseModel, ConfigDict, Field

from moerge.blobs.local import LocalBlobs
from moerge.errors import MoergeError
from moerge_proto.messages import FileEntry

_PART = 2**23
_PARTS_AT_ONCE = 2
_TRANSFERS_AT_ONCE = 4
_CONDITIONAL = 2**24  # obstore holds conditionally created objects in memory
_KEPT_SECONDS = 3600.0
_CLOCKS_DIFFER_SECONDS = 1.0  # a file system's clock lags behind the process's
_URL_LASTS = timedelta(hours=1)
_RETRIED, _TRIED = timedelta(seconds=180), timedelta(seconds=20)
_ANSWER = re.compile(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", re.DOTALL)
_CREDENTIALS = (
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    ("AWS_METADATA_ENDPOINT",),
    ("AWS_SKIP_SIGNATURE",),
)
"""Sets of environment variables that give credentials. Without any, obstore asks a cloud's metadata address."""


class S3(BaseModel):
    """The location of a store.

    Attributes:
        bucket: the name of an existing bucket.
        endpoint: URL of the store; None means AWS. Clients that download must reach it too.
        region: the bucket's region.
        prefix: the beginning of every key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bucket: str = Field(min_length=3)
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/]")
    region: str = "us-east-1"
    prefix: str = Field(default="", pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$")


class _Keys:
    """The objects below one prefix."""

    def __init__(self, place: S3, folder: str, retried: timedelta = _RETRIED) -> None:
        self._place = place
        require_credentials(os.environ, "s3")
        with self._told():
            self._store = S3Store(
                place.bucket,
                endpoint=place.endpoint,
                region=place.region,
                client_options={"allow_http": (place.endpoint or "").startswith("http://")},
                retry_config={"retry_timeout": retried},
            )
        self._prefix = f"{place.prefix}/{folder}" if place.prefix else folder
        self._transfers = threading.BoundedSemaphore(_TRANSFERS_AT_ONCE)

    def key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BaseError as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> MoergeError:
        place = f"bucket {self._place.bucket!r} at {self._place.endpoint or 'AWS'}"
        todo = "check that the store runs, the settings in [s3] and the AWS_* variables"
        return MoergeError(f"{place} can't be used: {reason_of(error)}", where="s3", todo=todo)

    def require_usable(self) -> None:
        """Lists the bucket, because some stores make one at a write, then writes an object.

        Raises:
            MoergeError: one of them fails.
        """
        try:
            with self._told():
                next(iter(obstore.list(self._store, self.key(""))), None)
            self.overwrite("written", b"")
        except FileNotFoundError as error:
            raise self._failed(error) from error

    def size(self, name: str) -> int | None:
        with self._told(), suppress(FileNotFoundError):
            return obstore.head(self._store, self.key(name))["size"]
        return None

    def create(self, name: str, file: Path) -> None:
        """Uploads the file, unless an object of that name exists. Holds at most a few parts in memory."""
        if self.size(name) is not None:
            return
        with self._told(), self._transfers:
            if file.stat().st_size > _CONDITIONAL:  # concurrent writers write the same content
                obstore.put(self._store, self.key(name), file, chunk_size=_PART, max_concurrency=_PARTS_AT_ONCE)
                return
            with suppress(AlreadyExistsError):
                obstore.put(self._store, self.key(name), file, mode="create")

    def read(self, name: str) -> Iterator[bytes]:
        with self._told():
            for piece in obstore.get(self._store, self.key(name)).stream(_PART):
                yield bytes(piece)

    def overwrite(self, name: str, data: bytes) -> None:
        with self._told():
            obstore.put(self._store, self.key(name), data)

    def delete(self, *names: str) -> None:
        with self._told(), suppress(FileNotFoundError):
            obstore.delete(self._store, [self.key(name) for name in names])

    def names(self, below: str = "") -> Iterator[tuple[str, int]]:
        """Name, from `below` on, and size of every object."""
        prefix = self.key(below).rstrip("/") + "/"
        with self._told(), suppress(FileNotFoundError):
            for batch in obstore.list(self._store, prefix):
                for each in batch:
                    yield each["path"].removeprefix(prefix), each["size"]

    def url(self, name: str) -> str:
        with self._told():
            return obstore.sign(self._store, "GET", self.key(name), _URL_LASTS)


def reason_of(error: Exception) -> str:
    """An error of obstore in one line; its message goes on with URLs, times and a dump of many lines."""
    if (answer := _ANSWER.search(str(error))) is not None:
        return f"{answer[1]}: {answer[2]}"
    return str(error).partition("\n")[0].rpartition(" - ")[2].replace("HTTP error:", "no answer,")


def require_credentials(environment: Mapping[str, str], where: str) -> None:
    """Requires variables with credentials.

    Raises:
        MoergeError: at `where`; there are none.
    """
    if not any(all(environment.get(name) for name in names) for names in _CREDENTIALS):
        todo = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
        todo += "on a cloud machine with a role of its own, set AWS_METADATA_ENDPOINT=http://169.254.169.254"
        raise MoergeError("no credentials for the store in the environment", where=where, todo=todo)


def require_store(place: S3) -> None:
    """Requires that the store answers, has the bucket, and lets it be listed and written.

    Raises:
        MoergeError: it doesn't; says why.
    """
    _Keys(place, "probe", _TRIED).require_usable()


class S3Blobs:
    """A bucket's blobs under `blobs/<digest>`. `local` fetches them into a cache of at most `cache_bytes`.

    Files used in the last hour, or during an open `holding`, are never evicted.
    """

    lasting = False

    def __init__(self, place: S3, cache: Path, cache_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._keys, self._probe = _Keys(place, "blobs"), _Keys(place, "probe")
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
        with self.holding():
            entry = self._cache.put(name, write)
            while not self._touch(entry.sha256):  # an old copy has just been pruned
                entry = self._cache.put(name, write)
            self._keys.create(entry.sha256, self._cache.path(entry.sha256))
        self._make_room()
        return entry

    def local(self, digest: str) -> Path:
        if not self._touch(digest):
            self._cache.put(digest, lambda out: self._fetch(digest, out))
            self._touch(digest)
            self._make_room()
        return self._cache.path(digest)

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
                found = path.stat()
                yield found.st_mtime, found.st_size, path

    def _fetch(self, digest: str, out: BinaryIO) -> str:
        found = hashlib.sha256()
        for piece in self._keys.read(digest):
            found.update(piece)
            out.write(piece)
        if found.hexdigest() != digest:
            raise MoergeError(
                f"its SHA-256 is {found.hexdigest()}",
                where=self._keys.key(digest),
                todo="restore the object from a backup; the object store damaged it",
            )
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
        self._keys = _Keys(place, "uploads")
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
