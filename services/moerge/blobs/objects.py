"""Objects in an S3-compatible store. Credentials come from AWS_* variables."""

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store
from pydantic import BaseModel, ConfigDict, Field

from moerge.errors import MoergeError

PART = 2**23
_PARTS_AT_ONCE = 2
_TRANSFERS_AT_ONCE = 4
MOST_PARTS = 10_000
"""Of one object, by S3's rules."""
SMALL = 2**24
"""The most bytes of a file that is created conditionally, in memory, or that stays in the cache."""
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


def part_bytes(size: int) -> int:
    """Bytes of the parts in which a file of `size` bytes is sent."""
    return max(PART, -(-size // MOST_PARTS))


class S3(BaseModel):
    """The location of a store of blobs, which coordinators can share.

    Attributes:
        bucket: an existing bucket.
        endpoint: URL that the coordinator and clients that download must reach; by default AWS.
        region: region of the bucket.
        prefix: prefix of every object's name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bucket: str = Field(min_length=3)
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/]")
    region: str = "us-east-1"
    prefix: str = Field(default="", pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$")


class Keys:
    """The objects below one prefix."""

    def __init__(self, place: S3, folder: str, retried: timedelta = _RETRIED) -> None:
        self._place = place
        require_credentials(os.environ, "s3")
        with self._translated():
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
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except BaseError as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> MoergeError:
        place = f"bucket {self._place.bucket!r} at {self._place.endpoint or 'AWS'}"
        todo = "check that the store runs, the settings in [s3] and the AWS_* variables"
        return MoergeError(f"{place} can't be used: {reason_of(error)}", where="s3", todo=todo)

    def require_usable(self) -> None:
        """Lists the bucket, because some stores make one at a write, then writes an object. Raises MoergeError."""
        try:
            with self._translated():
                next(iter(obstore.list(self._store, self.key(""))), None)
            self.overwrite("written", b"")
        except FileNotFoundError as error:
            raise self._failed(error) from error

    def size(self, name: str) -> int | None:
        with self._translated(), suppress(FileNotFoundError):
            return obstore.head(self._store, self.key(name))["size"]
        return None

    def create(self, name: str, file: Path) -> None:
        """Uploads the file, unless an object of that name exists. Holds at most a few parts in memory."""
        if self.size(name) is not None:
            return
        with self._translated(), self._transfers:
            if (size := file.stat().st_size) > SMALL:  # concurrent writers write the same content
                part = part_bytes(size)
                obstore.put(self._store, self.key(name), file, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)
                return
            with suppress(AlreadyExistsError):
                obstore.put(self._store, self.key(name), file, mode="create")

    def read(self, name: str) -> Iterator[bytes]:
        with self._translated():
            for piece in obstore.get(self._store, self.key(name)).stream(PART):
                yield bytes(piece)

    def part(self, name: str, start: int, length: int) -> memoryview:
        """`length` bytes of an object."""
        try:
            with self._translated():
                return memoryview(obstore.get_range(self._store, self.key(name), start=start, length=length))
        except FileNotFoundError as error:
            todo = "repeat the call; it was removed by a withdrawal"
            raise MoergeError("the object was removed while it was read", where=self.key(name), todo=todo) from error

    def overwrite(self, name: str, data: bytes) -> None:
        with self._translated():
            obstore.put(self._store, self.key(name), data)

    def delete(self, *names: str) -> None:
        with self._translated(), suppress(FileNotFoundError):
            obstore.delete(self._store, [self.key(name) for name in names])

    def names(self, below: str = "") -> Iterator[tuple[str, int]]:
        """Name, from `below` on, and size of every object."""
        prefix = self.key(below).rstrip("/") + "/"
        with self._translated(), suppress(FileNotFoundError):
            for batch in obstore.list(self._store, prefix):
                for item in batch:
                    yield item["path"].removeprefix(prefix), item["size"]

    def url(self, name: str) -> str:
        with self._translated():
            return obstore.sign(self._store, "GET", self.key(name), _URL_LASTS)


def reason_of(error: Exception) -> str:
    """An error of obstore in one line; its message goes on with URLs, times and a dump of many lines."""
    if (answer := _ANSWER.search(str(error))) is not None:
        return f"{answer[1]}: {answer[2]}"
    return str(error).partition("\n")[0].rpartition(" - ")[2].replace("HTTP error:", "no answer,")


def require_credentials(environment: Mapping[str, str], where: str) -> None:
    if not any(all(environment.get(name) for name in names) for names in _CREDENTIALS):
        todo = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
        todo += "on a cloud machine with a role of its own, set AWS_METADATA_ENDPOINT=http://169.254.169.254"
        raise MoergeError("no credentials for the store in the environment", where=where, todo=todo)


def require_store(place: S3) -> None:
    """Requires that the store answers, has the bucket, and lets it be listed and written."""
    Keys(place, "probe", _TRIED).require_usable()
