"""Uploads: a manifest of chunks, then the chunks that the server lacks, then a commit of the whole file."""

from typing import Literal, Self

from pydantic import Field, model_validator

from moerge_proto.digests import Digest
from moerge_proto.messages import Message

CHUNK_BYTES = 8 * 2**20
MAX_CHUNK_BYTES = CHUNK_BYTES + 2**16
"""Largest chunk as sent: incompressible data grows a little."""
MAX_CHUNKS = 2**14
_FEW = 16


class Chunk(Message):
    """One chunk as sent: SHA-256 and size in bytes of the (possibly compressed) body."""

    sha256: Digest
    size: int = Field(gt=0, le=MAX_CHUNK_BYTES)


class NewUpload(Message):
    """Announces one file of `size` plain bytes, in `chunks` that are plain or one zstd frame each: at most 16, and one
    for each whole MiB."""

    sha256: Digest
    size: int = Field(gt=0, lt=2**53)
    encoding: Literal["identity", "zstd"] = "identity"
    chunks: list[Chunk] = Field(min_length=1, max_length=MAX_CHUNKS)

    @model_validator(mode="after")
    def _neither_tiny_nor_too_large(self) -> Self:
        most = _FEW + self.size // 2**20
        if len(self.chunks) > most:
            raise ValueError(f"chunks: expected at most {most} for {self.size} bytes, found {len(self.chunks)}")
        sent = sum(chunk.size for chunk in self.chunks)
        if sent > self.size + 2**16 * len(self.chunks):
            raise ValueError(f"chunks: {sent} bytes are too many for a file of {self.size}")
        return self


class Upload(Message):
    """An open upload: `missing` lists the chunks that this owner has not sent yet."""

    id: int
    missing: list[Digest]


class Stored(Message):
    """A complete file, kept under its digest."""

    sha256: Digest
    size: int
