"""The content of composed files: any range of it is that part of the whole."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response, StreamingResponse

from moerge.blobs.local import LocalBlobs
from moerge_coordinator.rest.content import composed_content
from moerge_coordinator.storage.tables import ComposedRow
from moerge_proto.composed import Segment
from moerge_proto.digests import sha256_hex

SOURCES = bytes(range(100)), bytes(range(100, 200))
HEADER = b"a header."
SPANS = ((0, 10, 40), (1, 0, 1), (1, 90, 100), (0, 40, 100))
WHOLE = HEADER + b"".join(SOURCES[source][start:end] for source, start, end in SPANS)
BORDERS = [sum((len(HEADER), *(end - start for _, start, end in SPANS[:n]))) for n in range(len(SPANS) + 1)]


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> LocalBlobs:
    store = LocalBlobs(tmp_path_factory.mktemp("blobs"))
    for source in SOURCES:

        def write(out: object, source: bytes = source) -> str:
            out.write(source)  # type: ignore[attr-defined]
            return sha256_hex(source)

        store.put("file", write)
    return store


def row() -> ComposedRow:
    segments = [Segment(sha256=sha256_hex(SOURCES[source]), start=start, end=end) for source, start, end in SPANS]
    return ComposedRow(key="0" * 64, sha256=sha256_hex(WHOLE), size=len(WHOLE), header=HEADER, segments=segments)


def content(answer: Response) -> bytes:
    async def read() -> bytes:
        assert isinstance(answer, StreamingResponse)
        return b"".join([bytes(piece) async for piece in answer.body_iterator])  # type: ignore[arg-type]

    return asyncio.run(read())


def places() -> Iterator[int]:
    """Both sides of each border, and beyond the end."""
    yield from (0, *(border + more for border in BORDERS for more in (-1, 0, 1)), 10**17)


@given(
    st.sampled_from(list(places())) | st.integers(0, len(WHOLE)),
    st.none() | st.sampled_from(list(places())) | st.integers(0, len(WHOLE)),
)
def test_a_range_is_that_part_of_the_whole(blobs: LocalBlobs, start: int, last: int | None) -> None:
    answer = composed_content(blobs, row(), f"bytes={start}-{'' if last is None else last}")
    expected = WHOLE[start : None if last is None else last + 1]
    if not expected:
        assert (answer.status_code, answer.headers["Content-Range"]) == (416, f"bytes */{len(WHOLE)}")
        return
    assert (answer.status_code, content(answer)) == (206, expected)
    assert answer.headers["Content-Range"] == f"bytes {start}-{start + len(expected) - 1}/{len(WHOLE)}"
    assert answer.headers["Content-Length"] == str(len(expected))


@pytest.mark.parametrize("asked", [None, "bytes=-5", "bytes=0-1,4-5", "items=0-1", "bytes=\u0660-1", "bytes=1-2\n"])
def test_another_range_gives_the_whole(blobs: LocalBlobs, asked: str | None) -> None:
    answer = composed_content(blobs, row(), asked)
    assert (answer.status_code, content(answer)) == (200, WHOLE)
    assert answer.headers["Content-Length"] == str(len(WHOLE))
