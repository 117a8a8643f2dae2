"""The content of a stored file."""

from fastapi.responses import FileResponse, RedirectResponse, Response

from moerge.blobs.store import Blobs


def content(blobs: Blobs, sha256: str, name: str) -> Response:
    """The requested ranges of the blob, or a redirection to its address in the store."""
    if (url := blobs.url(sha256)) is not None:
        return RedirectResponse(url, headers={"Cache-Control": "no-store"})
    return FileResponse(blobs.local(sha256), filename=name, headers={"ETag": f'"{sha256}"'})
