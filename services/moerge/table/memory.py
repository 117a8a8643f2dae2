"""How much memory something takes at most."""

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
    """While open, looking for garbage passes over all that was there before, such as imported modules."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class PeakMemory:
    """The most memory that was used since it was made, in bytes over what was used then.

    Of a GPU its own; else of the process, which Linux alone tells.
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
        """None where the system doesn't tell."""
        if self._before is None:
            return None
        peak = torch.cuda.max_memory_allocated() if self._on_gpu else _status("VmHWM")
        return max(0, peak - self._before)


def _reset() -> int | None:
    """Gives free memory back, makes what is used now the peak, and returns it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text(_RESET_PEAK)
    except (OSError, AttributeError):
        return None
    return _status("VmRSS")


def _status(name: str) -> int:
    [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])
