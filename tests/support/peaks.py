"""Peaks of memory of calls in a process of their own, whose heap no other test has left with gaps."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from support.processes import moerge

_LEAST, _MOST = 0.7, 1.15

_SCRIPT = """
import ctypes, sys
from pathlib import Path
import torch
from moerge_lab.peaks import PeakMemory
M_MMAP_THRESHOLD = -3
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 200000)
{function}
given = [Path(argument) for argument in sys.argv[1:]]
for path in given:
    call(path)  # imports, caches, and the buffers that libraries keep
for path in given:
    peak = PeakMemory()
    call(path)
    print("peak", peak.bytes() or 0)
"""


def peaks_of(function: str, *given: Path) -> list[int]:
    """The peak in bytes above the use before, of a call with each path; 0 where it is unknown.

    Args:
        function: Python code that defines `call`, and imports what it needs.
        given: its arguments.
    """
    lines = moerge(*given, script=_SCRIPT.format(function=function)).splitlines()
    return [int(line.removeprefix("peak ")) for line in lines if line.startswith("peak ")]


def require_growth(function: str, needs: Mapping[Path, int]) -> None:
    """Requires that the peak grows from the first argument of `call` to the second as its need in bytes does.

    Libraries have memory of their own, whose size depends on the processor. Both peaks have it, so their difference has
    not. A need is an upper bound: it may grow somewhat more than the peak.
    """
    small, large = peaks_of(function, *needs)
    if not large:
        pytest.skip("this system doesn't report peaks of memory")
    first, second = needs.values()
    assert _LEAST < (large - small) / (second - first) < _MOST
