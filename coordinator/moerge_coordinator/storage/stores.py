"""The stores of a coordinator's files."""

from moerge.blobs.local import LocalBlobs, LocalChunks
from moerge.blobs.s3 import S3Blobs, S3Chunks
from moerge.blobs.store import Blobs, Chunks
from moerge_coordinator.settings import Settings


def stores(settings: Settings) -> tuple[Blobs, Chunks]:
    """The stores of blobs and chunks."""
    home = settings.home
    if settings.s3 is None:
        return LocalBlobs(home / "blobs"), LocalChunks(home / "uploads")
    blobs = S3Blobs(settings.s3, home / "cache", settings.cache_bytes)
    return blobs, S3Chunks(settings.s3, home / "uploads" / "incoming")
