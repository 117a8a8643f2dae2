"""Uploads in chunks: a manifest, the missing chunks, a commit."""

from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.concurrency import run_in_threadpool

from moerge_coordinator.domain.owners import own_name
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import DomainOwner, Route
from moerge_coordinator.rest.lists import Number
from moerge_coordinator.rest.state import Coordinator
from moerge_proto.digests import Digest, content_digest
from moerge_proto.problems import ProblemType
from moerge_proto.uploads import NewUpload, Stored, Upload

router = APIRouter(prefix="/uploads", tags=["uploads"], route_class=Route)
_BYTES = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}}


@router.post("", status_code=201)
def open_upload(state: Coordinator, caller: DomainOwner, new: NewUpload) -> Upload:
    """Opens an upload, or finds it open; the answer lists the missing chunks."""
    return state.uploads.open(own_name(caller), new)


@router.put("/{upload}/chunks/{sha256}", status_code=204, openapi_extra=_BYTES, responses={429: {}})
async def put_chunk(
    request: Request,
    state: Coordinator,
    caller: DomainOwner,
    upload: Number,
    sha256: Digest,
    digest: Annotated[str | None, Header(alias="Content-Digest")] = None,
) -> None:
    """Receives one chunk. The header Content-Digest (RFC 9530) must have the same SHA-256."""
    if digest != (expected := content_digest(sha256)):
        raise RefusedError(ProblemType.WRONG_DIGEST, f"expected Content-Digest {expected}", where="Content-Digest")
    await state.uploads.receive(own_name(caller), upload, sha256, request.stream())


@router.post("/{upload}/commit")
async def commit(state: Coordinator, caller: DomainOwner, upload: Number) -> Stored:
    """Assembles the chunks and checks the file. Idempotent."""
    owner = own_name(caller)
    async with state.uploads.turn(owner):
        with state.metrics.committing():
            return await run_in_threadpool(state.uploads.commit, owner, upload)


@router.delete("/{upload}", status_code=204)
async def drop(state: Coordinator, caller: DomainOwner, upload: Number) -> None:
    """Drops an upload and its chunks. A committed file stays."""
    owner = own_name(caller)
    async with state.uploads.turn(owner):
        await run_in_threadpool(state.uploads.drop, owner, upload)
