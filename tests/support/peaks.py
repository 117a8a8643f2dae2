"""The peak memory of a call in a process of its own, whose heap no other test has left with gaps."""

import os
import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import sys
from pathlib import Path
import torch
from moerge_lab.peaks import PeakMemory
{function}
torch.set_num_threads(1)
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
    done = subprocess.run(  # noqa: S603  # our own script
        [sys.executable, "-c", _SCRIPT.format(function=function), *map(str, given)],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "200000", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])
