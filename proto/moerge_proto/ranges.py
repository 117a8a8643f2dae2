"""Files read in ranges, on this machine or elsewhere."""

import os
from pathlib import Path
from typing import Protocol


class Ranges(Protocol):
    """A read-only file. Several threads may read at once."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int:
        """In bytes."""

    def read(self, start: int, out: memoryview) -> int:
        """Fills `out` with the bytes from `start` on. Returns their number, which is smaller at the file's end."""

    def close(self) -> None: ...


Source = Path | Ranges


class LocalFile:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file = path.open("rb")
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, start: int, out: memoryview) -> int:
        done = 0
        while done < len(out) and (read := os.preadv(self._file.fileno(), [out[done:]], start + done)):
            done += read
        return done

    def close(self) -> None:
        self._file.close()


def opened(source: Source) -> Ranges:
    return LocalFile(source) if isinstance(source, Path) else source


def read_bytes(file: Ranges, start: int, count: int) -> bytes:
    """At most `count` bytes from `start` on; fewer at the file's end."""
    data = bytearray(count)
    return bytes(data[: file.read(start, memoryview(data))])
