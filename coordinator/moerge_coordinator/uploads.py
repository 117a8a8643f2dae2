"""Uploads on disk: chunks as they come, then the whole file as a blob."""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import BinaryIO

import zstandard
from sqlalchemy import Engine, select

from moerge.blobs.store import Blobs, Chunks
from moerge_coordinator.database import reading, transaction
from moerge_coordinator.needed import collect
from moerge_coordinator.refusals import RefusedError
from moerge_coordinator.tables import HoldingRow, UploadRow
from moerge_proto.digests import digest_of
from moerge_proto.problems import ProblemType
from moerge_proto.uploads import NewUpload, Stored, Upload

_PIECE = 2**20
_MAX_WINDOW = 2**27


class Uploads:
    """The open uploads, and what each owner holds."""

    def __init__(self, engine: Engine, blobs: Blobs, chunks: Chunks) -> None:
        self._engine, self._blobs, self._chunks = engine, blobs, chunks

    def sweep(self) -> None:
        """Removes the half-written chunks of a process that was killed. Call it before any chunk comes."""
        self._chunks.sweep()

    def open(self, owner: str, request: NewUpload) -> Upload:
        """Opens an upload, or finds the same one open; tells which chunks are missing."""
        content = request.model_dump(mode="json")
        manifest = digest_of(content)
        with transaction(self._engine) as session:
            row = session.scalar(select(UploadRow).where(UploadRow.owner == owner, UploadRow.manifest == manifest))
            if row is None:
                row = UploadRow(owner=owner, manifest=manifest, request=content)
                session.add(row)
                session.flush()
        held = self._holds(owner, request.sha256)
        wanted = [] if held else list(dict.fromkeys(chunk.sha256 for chunk in request.chunks))
        come = self._chunks.held(row.id) if wanted else set()
        return Upload(id=row.id, missing=[each for each in wanted if each not in come])

    async def receive(self, owner: str, upload: int, sha256: str, body: AsyncIterator[bytes]) -> None:
        """Writes one chunk to disk as it comes.

        Raises:
            RefusedError: the upload or chunk is unknown, or the bytes are too many, too few or others.
        """
        request = self._request(owner, upload)
        size = next((chunk.size for chunk in request.chunks if chunk.sha256 == sha256), None)
        if size is None:
            raise RefusedError(ProblemType.NOT_FOUND, "the upload's manifest has no such chunk", where=sha256)
        digest, come = hashlib.sha256(), 0
        self._chunks.incoming.mkdir(parents=True, exist_ok=True)
        file = self._chunks.incoming / secrets.token_hex(16)
        try:
            with file.open("xb") as out:
                async for piece in body:
                    come += len(piece)
                    if come > size:
                        raise RefusedError(
                            ProblemType.INVALID_REQUEST, f"more than the {size} bytes of the manifest", where=sha256
                        )
                    digest.update(piece)
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
            if come < size:
                raise RefusedError(
                    ProblemType.TRUNCATED, f"expected {size} bytes, received {come}", where=sha256, todo="send it again"
                )
            if digest.hexdigest() != sha256:
                raise RefusedError(
                    ProblemType.WRONG_DIGEST,
                    f"the bytes' SHA-256 is {digest.hexdigest()}",
                    where=sha256,
                    todo="send it again",
                )
            await asyncio.to_thread(self._chunks.keep, upload, sha256, file)
        finally:
            file.unlink(missing_ok=True)

    def commit(self, owner: str, upload: int) -> Stored:
        """Puts the chunks together as a blob. Doing it again changes nothing.

        Raises:
            RefusedError: a chunk is missing, or the whole isn't what its name says; then the upload is forgotten.
        """
        request = self._request(owner, upload)
        stored = Stored(sha256=request.sha256, size=request.size)
        if self._holds(owner, request.sha256):
            return stored
        if missing := self.open(owner, request).missing:
            if self._holds(owner, request.sha256):  # the same commit, sent twice at once, has just removed the chunks
                return stored
            raise RefusedError(
                ProblemType.NOT_READY, f"{len(missing)} chunks are missing", where=missing[0], todo="send them"
            )
        put = partial(self._blobs.put, request.sha256, partial(self._assemble, upload, request))
        try:
            put()
        except RefusedError:
            self._forget(upload)
            raise
        except FileNotFoundError:  # the same commit, sent twice at once, has just removed the chunks
            self.held(owner, request.sha256, "sha256")
            return stored
        while True:
            with transaction(self._engine) as session:
                if self._blobs.has(request.sha256):
                    session.merge(HoldingRow(owner=owner, sha256=request.sha256, size=request.size))
                    break
            put()  # another owner's refusal removed it just before the row was there
        self._chunks.remove(upload)
        return stored

    def held(self, owner: str, sha256: str, where: str) -> int:
        """The size of a file that the owner has uploaded.

        Raises:
            RefusedError: it has not.
        """
        with reading(self._engine) as session:
            row = session.get(HoldingRow, (owner, sha256))
        if row is None:
            raise RefusedError(
                ProblemType.NOT_READY, f"no complete upload {sha256}", where=where, todo="upload it first"
            )
        return row.size

    def _holds(self, owner: str, sha256: str) -> bool:
        with reading(self._engine) as session:
            return session.get(HoldingRow, (owner, sha256)) is not None

    def discard(self, owner: str, digests: list[str]) -> None:
        """Forgets that the owner sent refused files; removes each blob that nothing needs."""
        with transaction(self._engine) as session:
            for digest in digests:
                if (row := session.get(HoldingRow, (owner, digest))) is not None:
                    session.delete(row)
        collect(self._engine, self._blobs, digests)

    def _assemble(self, upload: int, request: NewUpload, out: BinaryIO) -> str:
        digest, size = hashlib.sha256(), 0
        for chunk in request.chunks:
            for piece in self._plain(upload, chunk.sha256, request.encoding):
                size += len(piece)
                if size > request.size:
                    raise RefusedError(
                        ProblemType.WRONG_DIGEST, f"the chunks hold more than {request.size} bytes", where="size"
                    )
                digest.update(piece)
                out.write(piece)
        if size != request.size or digest.hexdigest() != request.sha256:
            found = f"the chunks make {size} bytes with SHA-256 {digest.hexdigest()}"
            raise RefusedError(
                ProblemType.WRONG_DIGEST,
                f"{found}, not {request.size} with {request.sha256}",
                where="sha256",
                todo="send it again",
            )
        return request.sha256

    def _request(self, owner: str, upload: int) -> NewUpload:
        with reading(self._engine) as session:
            row = session.get(UploadRow, upload)
        if row is None or row.owner != owner:
            raise RefusedError(ProblemType.NOT_FOUND, f"no upload {upload}", todo="open it again")
        return NewUpload.model_validate(row.request)

    def _forget(self, upload: int) -> None:
        with transaction(self._engine) as session:
            session.delete(session.get_one(UploadRow, upload))
        self._chunks.remove(upload)

    def _plain(self, upload: int, sha256: str, encoding: str) -> Iterator[bytes]:
        with self._chunks.open(upload, sha256) as file:
            try:
                source = (
                    zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(file)
                    if encoding == "zstd"
                    else file
                )
                while piece := source.read(_PIECE):
                    yield piece
            except zstandard.ZstdError as error:
                raise RefusedError(ProblemType.WRONG_DIGEST, f"not a zstd frame: {error}", where=sha256) from error
