"""The content of a stored file."""

import re

from fastapi.responses import FileResponse, RedirectResponse, Response, StreamingResponse

from moerge.blobs.store import Blobs
from moerge_coordinator.storage.composed import content as composed_bytes
from moerge_coordinator.storage.tables import ComposedRow

_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")


def content(blobs: Blobs, sha256: str, name: str) -> Response:
    """The requested ranges of the blob, or a redirection to its address in the store."""
    if (url := blobs.url(sha256)) is not None:
        return RedirectResponse(url, headers={"Cache-Control": "no-store"})
    return FileResponse(blobs.local(sha256), filename=name, headers={"ETag": f'"{sha256}"'})


def composed_content(blobs: Blobs, row: ComposedRow, asked: str | None) -> Response:
    """A composed file, or the asked range of it."""
    found = None if asked is None else _RANGE.fullmatch(asked)
    start = 0 if found is None else int(found[1])
    end = row.size if found is None or not found[2] else min(int(found[2]) + 1, row.size)
    headers = {"ETag": f'"{row.sha256}"', "Accept-Ranges": "bytes", "Content-Length": str(max(0, end - start))}
    kind = "application/octet-stream"
    if found is None:
        return StreamingResponse(composed_bytes(blobs, row), media_type=kind, headers=headers)
    if start >= end:
        return Response(status_code=416, headers={"Content-Range": f"bytes */{row.size}"})
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{row.size}"
    return StreamingResponse(composed_bytes(blobs, row, start, end), 206, media_type=kind, headers=headers)
