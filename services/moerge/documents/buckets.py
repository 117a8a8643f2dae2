"""S3 as a file system of fsspec, read with obstore."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from obstore.exceptions import BaseError
from obstore.fsspec import BufferedFile, FsspecStore

from moerge.blobs.objects import reason_of


class StoreError(ValueError):
    """A failed request. It is no OSError, because fsspec leaves out folders whose listing raises one."""


class Buckets(FsspecStore):
    """The buckets of AWS, or of the store at AWS_ENDPOINT_URL, with settings and credentials from AWS_* variables."""

    protocol = "s3"

    def __init__(self) -> None:
        plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        super().__init__("s3", client_options={"allow_http": plain})

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        if "/" not in path:
            return {"name": path, "type": "directory", "size": 0}
        with _translated():
            return await super()._info(path, **kwargs)

    async def _ls(self, *args: Any, **kwargs: Any) -> Any:
        with _translated():
            return await super()._ls(*args, **kwargs)

    def _open(self, path: str, *args: Any, **kwargs: Any) -> BufferedFile:
        return _File(self, path, "rb", size=self.info(path)["size"])


class _File(BufferedFile):
    def read(self, length: int = -1) -> bytes:
        with _translated():
            return super().read(length)

    def readline(self) -> bytes:
        with _translated():
            return super().readline()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except BaseError as error:
        raise StoreError(reason_of(error)) from error
