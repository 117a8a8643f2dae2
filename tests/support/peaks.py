"""The peak memory of a call in a process of its own, whose heap no other test has left with gaps."""

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
call(*map(Path, sys.argv[1:]))  # imports and caches
peak = PeakMemory()
call(*map(Path, sys.argv[1:]))
print(peak.bytes() or 0)
"""


def peak_of(function: str, *given: Path) -> int:
    """The peak in bytes above the use before, of the second of two calls; 0 where it is unknown.

    Args:
        function: Python code that defines `call`, and imports what it needs.
        given: its arguments.
    """
    return int(moerge(*given, script=_SCRIPT.format(function=function)).split()[-1])
