"""A file written past the page cache has the bytes that were written, whatever their pieces."""

import os
from pathlib import Path

import pytest

from moerge.blobs.direct_io import direct_file

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
