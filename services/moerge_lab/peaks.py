"""Peak memory of a piece of work."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@contextmanager
def quick_collections() -> Iterator[None]:
    """While open, garbage collection skips older objects, such as imported modules."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class PeakMemory:
    """The peak memory since its creation, in bytes above the use at that time.

    It is a GPU's own memory, or the process's memory, which only Linux reports.
    """

    def __init__(self, device: str = "cpu") -> None:
        gc.collect()
        self._on_gpu = device.startswith("cuda")
        if self._on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self._before: int | None = torch.cuda.memory_allocated()
        else:
            self._before = _reset()

    def bytes(self) -> int | None:
        """The peak; None if unknown."""
        if self._before is None:
            return None
        peak = torch.cuda.max_memory_allocated() if self._on_gpu else _status("VmHWM")
        return max(0, peak - self._before)


def _reset() -> int | None:
    """Releases free memory, resets the peak to the current use, and returns it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text(_RESET_PEAK)
    except (OSError, AttributeError):
        return None
    return _status("VmRSS")


def _status(name: str) -> int:
    [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])
