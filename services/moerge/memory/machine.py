"""The free memory of this machine and its GPU, and failed allocations."""

from dataclasses import dataclass
from pathlib import Path

import torch

_CGROUPS = (  # folder, limit, use, prefix in memory.stat
    ("/sys/fs/cgroup", "memory.max", "memory.current", ""),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def free_bytes(device: str) -> int | None:
    """The free memory of a GPU, or of the machine with its swap, within the container's limit; None: unknown."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
    except OSError:
        return None
    free = sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    for folder, *names in _CGROUPS:
        if (left := _left_in_container(Path(folder), *names)) is not None:
            free = min(free, left)
    return free


def _left_in_container(folder: Path, limit: str, used: str, prefix: str) -> int | None:
    """The bytes to a container's limit; pages of files are free, because the system can drop them. None: no limit."""
    if not (path := folder / limit).is_file() or not (most := path.read_text("utf-8").strip()).isdecimal():
        return None
    try:
        stat = dict(line.split() for line in (folder / "memory.stat").read_text("utf-8").splitlines())
        taken = int((folder / used).read_text("utf-8"))
    except OSError:  # not all containers show them
        return int(most)
    files = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(0, int(most) - taken + files)


@dataclass(frozen=True)
class Free:
    """Free memory in bytes; None: unknown."""

    host: int | None  # of this machine
    device: int | None  # of each GPU; None also if the model is in host memory


def free_for(device: str) -> Free:
    """The free memory of this machine, and of the GPU if the models are there."""
    return Free(free_bytes("cpu"), None if device == "cpu" else free_bytes(device))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is a failed allocation, on the CPU or a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)
