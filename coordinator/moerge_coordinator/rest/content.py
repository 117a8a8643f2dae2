"""The content of a kept file."""

from fastapi import Request
from fastapi.responses import FileResponse, RedirectResponse, Response

from moerge.blobs.store import Blobs


def content(request: Request, sha256: str, name: str) -> Response:
    """The blob, in the ranges asked for; or the way to it, where its store gives addresses."""
    blobs: Blobs = request.app.state.blobs
    if (url := blobs.url(sha256)) is not None:
        return RedirectResponse(url, headers={"Cache-Control": "no-store"})
    return FileResponse(blobs.local(sha256), filename=name, headers={"ETag": f'"{sha256}"'})
