"""Peaks of memory of calls in a process of their own, whose heap no other test has left with gaps."""

from pathlib import Path

from support.processes import moerge

_SCRIPT = """
import ctypes, sys
from pathlib import Path
import torch
from moerge_lab.peaks import PeakMemory
M_MMAP_THRESHOLD = -3
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 200000)
{function}
given = [Path(argument) for argument in sys.argv[1:]]
call(given[0])  # imports and caches
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
