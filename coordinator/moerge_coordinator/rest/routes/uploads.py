"""Uploads in chunks: a manifest, the missing chunks, a commit."""

from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.concurrency import run_in_threadpool

from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import DomainOwner, own_name
from moerge_coordinator.rest.lists import Number
from moerge_proto.digests import Digest, content_digest
from moerge_proto.problems import ProblemType
from moerge_proto.uploads import NewUpload, Stored, Upload

router = APIRouter(prefix="/uploads", tags=["uploads"])
_BYTES = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}}


def _uploads(request: Request) -> Uploads:
    uploads: Uploads = request.app.state.uploads
    return uploads


@router.post("", status_code=201)
def open_upload(request: Request, caller: DomainOwner, new: NewUpload) -> Upload:
    """Opens an upload, or finds it open; answers which chunks are missing. Role: owner."""
    return _uploads(request).open(own_name(caller), new)


@router.put("/{upload}/chunks/{sha256}", status_code=204, openapi_extra=_BYTES, responses={429: {}})
async def put_chunk(
    request: Request,
    caller: DomainOwner,
    upload: Number,
    sha256: Digest,
    digest: Annotated[str | None, Header(alias="Content-Digest")] = None,
) -> None:
    """Takes one chunk. The header Content-Digest (RFC 9530) must name the same SHA-256. Role: owner."""
    if digest != (expected := content_digest(sha256)):
        raise RefusedError(ProblemType.WRONG_DIGEST, f"expected Content-Digest {expected}", where="Content-Digest")
    await _uploads(request).receive(own_name(caller), upload, sha256, request.stream())


@router.post("/{upload}/commit")
async def commit(request: Request, caller: DomainOwner, upload: Number) -> Stored:
    """Puts the chunks together and checks the whole. The same again changes nothing. Role: owner."""
    with request.app.state.metrics.committing():
        return await run_in_threadpool(_uploads(request).commit, own_name(caller), upload)
