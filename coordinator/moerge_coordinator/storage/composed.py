"""The content of files that are stored as a header and segments of blobs."""

import hashlib
from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge_coordinator.storage.tables import ComposedRow, VersionRow
from moerge_proto.ranges import opened, read_bytes

_PIECE = 2**22


def composed(session: Session, row: VersionRow, sha256: str) -> ComposedRow | None:
    """The composed file of a part, of that digest; None: it is a blob, as a whole version's files are."""
    if row.part_of is None:
        return None
    query = select(ComposedRow).where(ComposedRow.part_of == row.part_of, ComposedRow.sha256 == sha256)
    return session.scalar(query.limit(1))


def content(blobs: Blobs, row: ComposedRow, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The bytes of a composed file from `start` to `end`."""
    end = row.size if end is None else end
    yield from filter(None, [row.header[start:end]])
    place = len(row.header)
    for segment in row.segments:
        first, last = max(start, place) - place, min(end, place + segment.size) - place
        if first < last:
            file = opened(blobs.source(segment.sha256))
            try:
                for at in range(segment.start + first, segment.start + last, _PIECE):
                    yield read_bytes(file, at, min(_PIECE, segment.start + last - at))
            finally:
                file.close()
        place += segment.size


def digest(blobs: Blobs, row: ComposedRow) -> str:
    """The SHA-256 of a composed file's content."""
    result = hashlib.sha256()
    for piece in content(blobs, row):
        result.update(piece)
    return result.hexdigest()
