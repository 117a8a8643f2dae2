"""Downloads from the coordinator, checked against digests."""

import hashlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx

from moerge.client.http import Http
from moerge.errors import MoergeError
from moerge.files import file_sha256, sync_folder
from moerge.progress import Progress
from moerge_proto.messages import FileEntry

_READ_BYTES = 2**20
_AGAIN = "run the command again; a repeated error means damaged storage at the coordinator"


def download(http: Http, path: str, files: list[FileEntry], folder: Path, progress: Progress, *, title: str) -> int:
    """Downloads `files` from below `path` into `folder` and returns the received bytes.

    Each file is checked against its digest and appears under its name only when complete. Existing files with the
    right content are kept.
    """
    received = 0
    with progress.track(title, sum(file.size for file in files), "B") as tracker:
        for file in files:
            target = folder / file.name
            if Path(file.name).name != file.name or file.name in ("", ".."):
                raise MoergeError(f"the coordinator listed a file outside the folder: {file.name!r}")
            if target.is_file() and file_sha256(target) == file.sha256:
                tracker.advance(file.size)
                continue
            if _part(target).is_file():
                tracker.advance(_part(target).stat().st_size)
            http.patiently(lambda f=file, t=target: _download_one(http, f"{path}/{f.name}", f, t, tracker.advance))  # type: ignore[misc]
            received += file.size
    return received


def _download_one(http: Http, path: str, file: FileEntry, target: Path, advance: Callable[[int], None]) -> None:
    """Fetches one file; resumes an earlier attempt's partial file, unless that is of another file or damaged."""
    part = _part(target)
    part.parent.mkdir(parents=True, exist_ok=True)
    resumed, digest = part.is_file(), hashlib.sha256()
    with ExitStack() as stack:
        out = stack.enter_context(part.open("a+b"))
        out.seek(0)
        while piece := out.read(_READ_BYTES):
            digest.update(piece)
        if out.tell() < file.size:
            headers = {"Range": f"bytes={out.tell()}-"} if out.tell() else {}
            stack.callback(lambda: None if out.tell() else part.unlink())  # no empty file stays
            with http.content(path, headers) as response:
                if headers and response.status_code != httpx.codes.PARTIAL_CONTENT:
                    out.truncate(0)
                    out.seek(0)
                    digest = hashlib.sha256()
                for piece in response.iter_bytes(_READ_BYTES):
                    if out.tell() + len(piece) > file.size:
                        out.truncate(0)
                        out.seek(0)
                        raise MoergeError(f"expected {file.size} bytes, received more", where=file.name, todo=_AGAIN)
                    digest.update(piece)
                    out.write(piece)
                    advance(len(piece))
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != file.sha256:
        part.unlink(missing_ok=True)
        if resumed:
            return _download_one(http, path, file, target, advance)
        raise MoergeError(
            f"expected SHA-256 {file.sha256}, received {digest.hexdigest()}",
            where=file.name,
            todo=_AGAIN,
        )
    part.replace(target)
    sync_folder(target.parent)


def _part(target: Path) -> Path:
    return target.with_name(f".{target.name}.part")
