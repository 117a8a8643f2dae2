"""Large files written past the page cache, if the system can: filling the cache takes longer than the disk."""

import errno
import io
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

_BUFFER = 2**23
_ALIGNED = 4096


@contextmanager
def direct_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file for writing from start to end; on leaving, all of it is on the disk."""
    descriptor = _descriptor(path)
    if descriptor is None:
        with path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        return
    try:
        with ThreadPoolExecutor(1) as thread:
            direct = _DirectFile(descriptor, thread)
            yield cast("BinaryIO", direct)
            direct.finish()
    finally:
        os.close(descriptor)


def _descriptor(path: Path) -> int | None:
    """A new file's descriptor; None if the system or the file system can't write past its cache."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        path.unlink(missing_ok=True)  # some systems create it before they refuse
        return None


class _DirectFile(io.RawIOBase):
    """Copies data into aligned buffers, which a thread writes."""

    def __init__(self, descriptor: int, thread: ThreadPoolExecutor) -> None:
        self._descriptor, self._thread = descriptor, thread
        self._buffers = [mmap.mmap(-1, _BUFFER) for _ in range(3)]
        self._pending: list[Future[Any] | None] = [None] * len(self._buffers)
        self._current = self._filled = self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        start = 0
        while start < len(view):
            count = min(len(view) - start, _BUFFER - self._filled)
            self._buffers[self._current][self._filled : self._filled + count] = view[start : start + count]
            start, self._filled = start + count, self._filled + count
            if self._filled == _BUFFER:
                self._send()
        return len(view)

    def finish(self) -> None:
        """Writes the rest, truncates the last block's padding, and waits for the disk."""
        if self._filled:
            self._send()
        for pending in self._pending:
            if pending is not None:
                pending.result()
        os.ftruncate(self._descriptor, self._written)
        os.fsync(self._descriptor)

    def _send(self) -> None:
        """Hands the current buffer to the thread and waits until the next one is free."""
        padded = -(-self._filled // _ALIGNED) * _ALIGNED
        block = memoryview(self._buffers[self._current])[:padded]
        self._pending[self._current] = self._thread.submit(_write_all, self._descriptor, block, self._written)
        self._written += self._filled
        self._current, self._filled = (self._current + 1) % len(self._buffers), 0
        waited = self._pending[self._current]
        if waited is not None:
            waited.result()


def _write_all(descriptor: int, block: memoryview, offset: int) -> None:
    while block:
        count = os.pwrite(descriptor, block, offset)
        block, offset = block[count:], offset + count
