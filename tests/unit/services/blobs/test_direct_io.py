"""A file written past the page cache has the bytes that were written, whatever their pieces."""

import os
from pathlib import Path

import pytest

from moerge.blobs.direct_io import direct_file
from moerge.blobs.local import LocalBlobs
from moerge_proto.digests import sha256_hex

BUFFER = 2**23


@pytest.mark.parametrize(
    "sizes",
    [[], [1], [0, 5], [4096], [4095, 2], [BUFFER], [BUFFER + 1], [7, 3 * BUFFER, 11, BUFFER - 18], [BUFFER] * 5],
)
@pytest.mark.parametrize("direct", [True, False])
def test_every_byte_is_there_and_none_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], direct: bool
) -> None:
    if not direct:
        monkeypatch.delattr(os, "O_DIRECT", raising=False)  # as on a system without it
    pieces = [os.urandom(size) for size in sizes]
    path = tmp_path / "file"
    with direct_file(path) as out:
        for piece in pieces:
            assert out.write(memoryview(piece)) == len(piece)
    assert path.read_bytes() == b"".join(pieces)


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(FileExistsError), direct_file(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_law_10_a_writer_that_raises_leaves_no_blob(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)

    def half(out: object) -> str:
        out.write(b"x" * (BUFFER + 1))  # type: ignore[attr-defined]
        raise RuntimeError("cut")

    with pytest.raises(RuntimeError, match="cut"):
        blobs.put("name", half)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    entry = blobs.put("name", lambda out: (out.write(b"whole"), sha256_hex(b"whole"))[1])
    assert (blobs.path(entry.sha256).read_bytes(), entry.size) == (b"whole", 5)
