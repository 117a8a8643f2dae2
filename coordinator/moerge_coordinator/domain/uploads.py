"""Uploads: chunks, assembled into blobs, and owners' quotas."""

import asyncio
import hashlib
import os
import secrets
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

import zstandard
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs, Chunks
from moerge.files import file_sha256
from moerge_coordinator.domain.upload_rate import UploadRate
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.references import collect, needed
from moerge_coordinator.storage.tables import HoldingRow, UploadRow, now
from moerge_proto.digests import digest_of
from moerge_proto.messages import FileEntry
from moerge_proto.problems import ProblemType
from moerge_proto.uploads import CHUNK_BYTES, Chunk, NewUpload, Stored, Upload

_PIECE = 2**20
_STALE = timedelta(minutes=1)  # not every chunk writes a row
_MAX_WINDOW = CHUNK_BYTES  # enough for every frame of a chunk
_SPARE = 2**28  # bytes of the disk reserved for the databases


class Uploads:
    """The open uploads, and each owner's files."""

    def __init__(self, database: Database, blobs: Blobs, chunks: Chunks, settings: Settings) -> None:
        self._database, self._blobs, self._chunks, self._settings = database, blobs, chunks, settings
        self._rate = UploadRate(settings.owner_bytes_per_second, database.clock)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def sweep(self) -> None:
        """Removes the partial chunks of a killed process. Call it before the first chunk."""
        self._chunks.sweep()

    def sweep_abandoned(self) -> None:
        """Removes old untouched uploads, and owners' unused files."""
        before = self._database.clock() - timedelta(hours=self._settings.abandoned_after_hours)
        with self._database.transaction("sweep uploads") as session:
            left = session.scalars(select(UploadRow.id).where(UploadRow.touched < before)).all()
            for upload in left:  # before the rows, so that a crash leaves no chunks without a row
                self._chunks.remove(upload)
            session.execute(delete(UploadRow).where(UploadRow.touched < before))
            touched = {tuple(row) for row in session.execute(select(UploadRow.owner, UploadRow.sha256))}
            referred, loose = needed(session, holdings=False), set()
            for row in session.scalars(select(HoldingRow)):
                if row.sha256 not in referred and (row.owner, row.sha256) not in touched:
                    session.delete(row)
                    loose.add(row.sha256)
        collect(self._database, self._blobs, loose)

    def open(self, owner: str, request: NewUpload) -> Upload:
        """Opens an upload, or finds it open; lists the missing chunks."""
        manifest = digest_of(request.model_dump(mode="json"))
        with self._database.transaction("open upload") as session:
            holding = session.get(HoldingRow, (owner, request.sha256))
            if holding is not None and holding.size != request.size:
                problem = f"the file has {holding.size} bytes, not {request.size}"
                raise RefusedError(ProblemType.WRONG_DIGEST, problem, where="size", todo="send its correct size")
            query = select(UploadRow).where(UploadRow.owner == owner)
            row = session.scalar(query.where(UploadRow.manifest == manifest))
            if row is None and holding is not None:  # one row per file is enough
                row = session.scalar(query.where(UploadRow.sha256 == request.sha256).limit(1))
            if row is None:
                row = UploadRow(owner=owner, manifest=manifest, sha256=request.sha256, size=0)
                row.request, row.touched = request, now(session)
                session.add(row)
                session.flush()
                self._chunks.remove(row.id)  # of an earlier upload with this id
            if holding is None and not row.size:
                self._require_room(session, owner, request.size)
            row.request = request if holding is None else _brief(request)
            row.size, row.touched = request.size if holding is None else 0, now(session)
        if holding is not None:
            return Upload(id=row.id, missing=[])
        held = self._chunks.held(row.id)
        wanted = dict.fromkeys(chunk.sha256 for chunk in request.chunks)
        return Upload(id=row.id, missing=[digest for digest in wanted if digest not in held])

    async def receive(self, owner: str, upload: int, sha256: str, body: AsyncIterator[bytes]) -> None:
        """Writes one chunk to disk while receiving it, at the owner's rate."""
        request, complete = await asyncio.to_thread(self._request, owner, upload)
        if complete:
            return
        size = next((chunk.size for chunk in request.chunks if chunk.sha256 == sha256), None)
        if size is None:
            raise RefusedError(ProblemType.NOT_FOUND, "the upload's manifest has no such chunk", where=sha256)
        self._rate.take(owner, size)
        digest, received, again = hashlib.sha256(), 0, "send it again"
        self._chunks.incoming.mkdir(parents=True, exist_ok=True)
        file = self._chunks.incoming / secrets.token_hex(16)
        try:
            with file.open("xb") as out:
                async for piece in body:
                    received += len(piece)
                    if received > size:
                        problem = f"more than the {size} bytes of the manifest"
                        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where=sha256)
                    digest.update(piece)
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
            if received < size:
                problem = f"expected {size} bytes, received {received}"
                raise RefusedError(ProblemType.TRUNCATED, problem, where=sha256, todo=again)
            if digest.hexdigest() != sha256:
                problem = f"the bytes' SHA-256 is {digest.hexdigest()}"
                raise RefusedError(ProblemType.WRONG_DIGEST, problem, where=sha256, todo=again)
            await asyncio.to_thread(self._chunks.keep, upload, sha256, file)
        finally:
            file.unlink(missing_ok=True)

    def turn(self, name: str) -> asyncio.Lock:
        """A lock, such as an owner's for `commit` and `drop`: its calls run one by one, and wait without a thread."""
        return self._turns[name]

    def drop(self, owner: str, upload: int) -> None:
        """Removes an upload and its chunks. A committed file stays."""
        self._request(owner, upload)
        self._forget(upload)

    def commit(self, owner: str, upload: int) -> Stored:
        """Assembles the chunks into a blob; a wrong digest of the file removes the upload. Idempotent."""
        with self._database.claim(f"commit {owner}"):
            return self._commit(owner, upload)

    def _commit(self, owner: str, upload: int) -> Stored:
        request, complete = self._request(owner, upload)
        stored = Stored(sha256=request.sha256, size=request.size)
        if self.held_size(owner, request.sha256) is not None:
            return stored
        if complete:
            raise RefusedError(ProblemType.NOT_READY, "the file was discarded", where="upload", todo="open it again")
        if missing := self.open(owner, request).missing:
            if self.held_size(owner, request.sha256) is not None:  # a concurrent commit has just removed the chunks
                return stored
            problem = f"{len(missing)} chunks are missing"
            raise RefusedError(ProblemType.NOT_READY, problem, where=missing[0], todo="send them")
        self._require_disk(request.size)
        put = partial(self._blobs.put, request.sha256, partial(self._assemble, upload, request))
        try:
            put()
        except RefusedError:
            self._forget(upload)
            raise
        except FileNotFoundError:  # a concurrent commit has just removed the chunks
            self.held(owner, request.sha256, "sha256")
            return stored
        while True:
            with self._database.transaction("commit upload") as session:
                if self._blobs.has(request.sha256):
                    session.merge(HoldingRow(owner=owner, sha256=request.sha256, size=request.size))
                    if (row := session.get(UploadRow, upload)) is not None:
                        row.size, row.request = 0, _brief(request)  # stays for repeated commits, until swept
                    break
            put()  # another owner's refusal removed it just before the row existed
        self._chunks.remove(upload)
        return stored

    def held(self, owner: str, sha256: str, where: str) -> int:
        """The size of the owner's uploaded file, which must exist."""
        with self._database.transaction("hold upload") as session:
            row = session.get(HoldingRow, (owner, sha256))
            query = select(UploadRow).where(UploadRow.owner == owner, UploadRow.sha256 == sha256)
            for upload in session.scalars(query):
                upload.touched = now(session)  # in use soon, so not abandoned
        if row is None:
            problem, todo = f"no complete upload {sha256}", "upload it first"
            raise RefusedError(ProblemType.NOT_READY, problem, where=where, todo=todo)
        return row.size

    def keep(self, owner: str, file: FileEntry, part: Path, address: str) -> None:
        """Stores a file fetched from `address` like an upload of the owner."""

        def copied(out: BinaryIO) -> str:
            with part.open("rb") as source:
                shutil.copyfileobj(source, out, _PIECE)
            return file.sha256

        if (digest := file_sha256(part)) != file.sha256:
            part.unlink()  # the next attempt starts again
            problem = f"{address} has the SHA-256 {digest}, not {file.sha256}"
            raise RefusedError(ProblemType.WRONG_DIGEST, problem, where=f"files.{file.name}")
        while True:
            self._blobs.put(file.sha256, copied)
            with self._database.transaction("keep fetched file") as session:
                left = self._left(session, owner)
                if session.get(HoldingRow, (owner, file.sha256)) is None and file.size > left:
                    problem = f"{address} has {file.size} bytes, but owner {owner!r} has only {left} left"
                    raise RefusedError(ProblemType.OVER_QUOTA, problem, where="source")
                if self._blobs.has(file.sha256):  # otherwise another owner's refusal has just removed it
                    session.merge(HoldingRow(owner=owner, sha256=file.sha256, size=file.size))
                    break
        part.unlink()

    def room(self, owner: str) -> int:
        """The owner's remaining bytes."""
        with self._database.reading() as session:
            return self._left(session, owner)

    def held_size(self, owner: str, sha256: str) -> int | None:
        """The size of the owner's file, or None."""
        with self._database.reading() as session:
            row = session.get(HoldingRow, (owner, sha256))
            return None if row is None else row.size

    def discard(self, owner: str, digests: list[str]) -> None:
        """Removes the owner's refused files, and every blob without other uses."""
        with self._database.transaction("discard upload") as session:
            for digest in digests:
                if (row := session.get(HoldingRow, (owner, digest))) is not None:
                    session.delete(row)
        collect(self._database, self._blobs, digests)

    def _assemble(self, upload: int, request: NewUpload, out: BinaryIO) -> str:
        digest, size = hashlib.sha256(), 0
        for chunk in request.chunks:
            for piece in self._plain(upload, chunk.sha256, request.encoding):
                size += len(piece)
                if size > request.size:
                    problem = f"the chunks hold more than {request.size} bytes"
                    raise RefusedError(ProblemType.WRONG_DIGEST, problem, where="size")
                digest.update(piece)
                out.write(piece)
        if size != request.size or digest.hexdigest() != request.sha256:
            expected = f"not {request.size} with {request.sha256}"
            problem = f"the chunks make {size} bytes with SHA-256 {digest.hexdigest()}, {expected}"
            raise RefusedError(ProblemType.WRONG_DIGEST, problem, where="sha256", todo="send it again")
        return request.sha256

    def _request(self, owner: str, upload: int) -> tuple[NewUpload, bool]:
        """The request, and whether it has been committed."""
        with self._database.reading() as session:
            row = session.get(UploadRow, upload)
        if row is None or row.owner != owner:
            raise RefusedError(ProblemType.NOT_FOUND, f"no upload {upload}", todo="open it again")
        if self._database.clock() - row.touched > _STALE:
            with self._database.transaction("touch upload") as session:
                if (again := session.get(UploadRow, upload)) is not None:
                    again.touched = now(session)
        return row.request, not row.size

    def _require_room(self, session: Session, owner: str, size: int) -> None:
        query = select(func.count()).select_from(UploadRow)
        count = session.scalar(query.where(UploadRow.owner == owner, UploadRow.size > 0)) or 0
        if count >= (most := self._settings.owner_uploads):
            todo = f"finish one, or wait: abandoned ones end after {self._settings.abandoned_after_hours:g} hours"
            raise RefusedError(ProblemType.OVER_QUOTA, f"{count} uploads are open, of at most {most}", todo=todo)
        left = self._left(session, owner)
        if size > (disk := shutil.disk_usage(self._settings.home).total):
            problem = f"{size} bytes, but the coordinator's disk has only {disk} in total"
            raise RefusedError(ProblemType.OVER_QUOTA, problem, where="size", todo="tell the coordinator's operator")
        if size > left:
            problem = f"{size} bytes, but owner {owner!r} has only {left} of {self._settings.owner_bytes} left"
            todo = "ask the coordinator's operator for more"
            raise RefusedError(ProblemType.OVER_QUOTA, problem, where="size", todo=todo)

    def _require_disk(self, size: int) -> None:
        if (free := shutil.disk_usage(self._settings.home).free) < size + _SPARE:
            problem = f"the file has {size} bytes, but the coordinator's disk only {free} free"
            raise RefusedError(ProblemType.STORAGE_FULL, problem, where="size", todo="tell the coordinator's operator")

    def _left(self, session: Session, owner: str) -> int:
        announced = session.scalar(select(func.sum(UploadRow.size)).where(UploadRow.owner == owner, UploadRow.size > 0))
        held = session.scalar(select(func.sum(HoldingRow.size)).where(HoldingRow.owner == owner))
        return max(self._settings.owner_bytes - int(announced or 0) - int(held or 0), 0)

    def _forget(self, upload: int) -> None:
        self._chunks.remove(upload)
        with self._database.transaction("forget upload") as session:
            session.execute(delete(UploadRow).where(UploadRow.id == upload))

    def _plain(self, upload: int, sha256: str, encoding: str) -> Iterator[bytes]:
        with self._chunks.open(upload, sha256) as file:
            try:
                zstd = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
                source = zstd.stream_reader(file) if encoding == "zstd" else file
                while piece := source.read(_PIECE):
                    yield piece
            except zstandard.ZstdError as error:
                raise RefusedError(ProblemType.WRONG_DIGEST, f"not a zstd frame: {error}", where=sha256) from error


def _brief(request: NewUpload) -> NewUpload:
    """The request of a complete file, without its chunks."""
    chunk = Chunk(sha256=request.sha256, size=min(request.size, CHUNK_BYTES))
    return request.model_copy(update={"chunks": [chunk]})
