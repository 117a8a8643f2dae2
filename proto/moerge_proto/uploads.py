"""Uploads: a manifest of chunks, then the chunks that the server lacks, then a commit that names the whole."""

from typing import Literal

from pydantic import Field

from moerge_proto.digests import Digest
from moerge_proto.messages import Message

CHUNK_BYTES = 8 * 2**20


class Chunk(Message):
    """One chunk as sent: SHA-256 and size in bytes of the (possibly compressed) body."""

    sha256: Digest
    size: int = Field(gt=0, le=CHUNK_BYTES + 2**16)


class NewUpload(Message):
    """Announces one file of `size` plain bytes named `sha256`, in `chunks` that are plain or one zstd frame each."""

    sha256: Digest
    size: int = Field(gt=0, lt=2**53)
    encoding: Literal["identity", "zstd"] = "identity"
    chunks: list[Chunk] = Field(min_length=1)


class Upload(Message):
    """An open upload: `missing` lists the chunks that this owner has not sent yet."""

    id: int
    missing: list[Digest]


class Stored(Message):
    """A complete file, kept under its digest."""

    sha256: Digest
    size: int
