"""Uploads to the coordinator, in chunks."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import zstandard

from moerge.client.http import Http
from moerge.progress import Progress
from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.uploads import CHUNK_BYTES, Chunk, NewUpload, Stored, Upload


def upload(http: Http, path: Path, progress: Progress, *, title: str, compress: bool = False) -> Stored:
    """Uploads one file in chunks, each a zstd frame with `compress`. Resumes an interrupted upload."""
    encode: Callable[[bytes], bytes] = compressed if compress else bytes
    whole = hashlib.sha256()
    chunks: list[Chunk] = []
    places: dict[str, int] = {}
    for offset, plain in plain_chunks(path):
        whole.update(plain)
        sent = encode(plain)
        chunks.append(Chunk(sha256=sha256_hex(sent), size=len(sent)))
        places.setdefault(chunks[-1].sha256, offset)
    encoding: Literal["zstd", "identity"] = "zstd" if compress else "identity"
    new = NewUpload(sha256=whole.hexdigest(), size=path.stat().st_size, encoding=encoding, chunks=chunks)
    opened = http.post(Upload, "/v1/uploads", new)
    sizes = {chunk.sha256: chunk.size for chunk in chunks}
    with path.open("rb") as file, progress.track(title, sum(sizes.values()), "B") as tracker:
        tracker.advance(sum(sizes.values()) - sum(sizes[digest] for digest in opened.missing))
        for digest in opened.missing:
            file.seek(places[digest])
            body = encode(file.read(CHUNK_BYTES))
            headers = {"Content-Digest": content_digest(digest), "Content-Type": "application/octet-stream"}
            http.send("PUT", f"/v1/uploads/{opened.id}/chunks/{digest}", content=body, headers=headers)
            tracker.advance(len(body))
    return http.post(Stored, f"/v1/uploads/{opened.id}/commit")


def plain_chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        offset = 0
        while piece := file.read(CHUNK_BYTES):
            yield offset, piece
            offset += len(piece)


def compressed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)
