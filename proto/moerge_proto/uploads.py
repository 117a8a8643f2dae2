"""Uploads: a manifest of chunks, then the chunks that the server lacks, then a commit that names the whole."""

from typing import Literal, Self

from pydantic import Field, model_validator

from moerge_proto.digests import Digest
from moerge_proto.messages import Message

CHUNK_BYTES = 8 * 2**20
MAX_CHUNK_BYTES = CHUNK_BYTES + 2**16
"""A chunk as sent: what does not compress grows a little."""
MAX_CHUNKS = 2**14
_FEW = 16


class Chunk(Message):
    """One chunk as sent: SHA-256 and size in bytes of the (possibly compressed) body."""

    sha256: Digest
    size: int = Field(gt=0, le=MAX_CHUNK_BYTES)


class NewUpload(Message):
    """Announces one file of `size` plain bytes named `sha256`, in `chunks` that are plain or one zstd frame each.

    Small chunks are for small files: 16 may have any size, and one more for each whole MiB of the file.
    """

    sha256: Digest
    size: int = Field(gt=0, lt=2**53)
    encoding: Literal["identity", "zstd"] = "identity"
    chunks: list[Chunk] = Field(min_length=1, max_length=MAX_CHUNKS)

    @model_validator(mode="after")
    def _neither_tiny_nor_too_large(self) -> Self:
        most = _FEW + self.size // 2**20
        if len(self.chunks) > most:
            raise ValueError(f"chunks: {len(self.chunks)} are too many for {self.size} bytes; at most {most}")
        come = sum(chunk.size for chunk in self.chunks)
        if come > self.size + 2**16 * len(self.chunks):
            raise ValueError(f"chunks: {come} bytes are too many to hold {self.size}")
        return self


class Upload(Message):
    """An open upload: `missing` lists the chunks that this owner has not sent yet."""

    id: int
    missing: list[Digest]


class Stored(Message):
    """A complete file, kept under its digest."""

    sha256: Digest
    size: int
