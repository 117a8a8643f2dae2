"""The memory that a pass needs and a machine has, compared before the pass starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from rich.filesize import decimal
from transformers import PretrainedConfig

from moerge.documents.shards import enough
from moerge.errors import MoergeError
from moerge.models.bounds import attention_size
from moerge.models.config import read_config
from moerge.models.reader import model_shapes
from moerge.statistics.accumulate import sum_bytes
from moerge.statistics.passes import Pass, TrunkPass
from moerge_proto.statistics_file import StatisticsSettings, gram_length

_CGROUPS = (  # folder, limit, use, prefix in memory.stat
    ("/sys/fs/cgroup", "memory.max", "memory.current", ""),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


@dataclass(frozen=True)
class Need:
    """The memory of a streamed pass in bytes, whatever the number of layers.

    Attributes:
        weights: two layers, in the model's precision; the second is read ahead.
        sums: the float64 grams of one shard in one layer.
        batch: activations of one micro-batch in one layer.
        integers: the sums of one layer as integers, in host memory.
        token: hidden states of one token, in host memory.
        least: hidden states of the smallest full shard, of 64 H tokens.
    """

    weights: int
    sums: int
    batch: int
    integers: int
    token: int
    least: int

    @classmethod
    def of(cls, layer: int, hidden: int, intermediate: int, grams: Sequence[int], size: int, tokens: int) -> Self:
        """By a layer's number of parameters, the sizes of hidden states, MLP and grams, bytes of a number, and a
        micro-batch's tokens."""
        return cls(
            weights=2 * size * layer,
            sums=sum(map(sum_bytes, grams)),
            batch=tokens * (size * (3 * intermediate + 4 * hidden) + 4 * max(grams)),
            integers=sum(8 * gram_length(gram) for gram in grams),
            token=size * hidden,
            least=size * hidden * enough(hidden),
        )

    def device(self, threads: int = 1) -> int:
        """Of a process that computes `threads` shards at a time, where its model is."""
        return self.weights + threads * (self.sums + self.batch)

    def host(self, threads: int = 1, *, on_gpu: bool = False) -> int:
        """Of such a process, in host memory, without hidden states; two shards' sums are added up."""
        return (threads + 2) * self.integers + (0 if on_gpu else self.device(threads))

    @property
    def journal(self) -> int:
        """Of the process with the journal: a layer's sums of a window, of the journal, and of both."""
        return 3 * self.integers


def need(work: Pass, settings: StatisticsSettings) -> Need:
    """The memory that a pass needs, by the expert's config."""
    config, dtype = read_config(work.expert), getattr(torch, settings.precision)
    hidden, tokens = int(config.hidden_size), max(settings.batch_tokens, settings.context)
    layer = layer_bytes(config, dtype) // dtype.itemsize
    return Need.of(layer, hidden, int(config.intermediate_size), _grams(work, config), dtype.itemsize, tokens)


def layer_bytes(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """The bytes of one layer's weights, of a dense model or a published version."""
    layer = [shape for name, shape in model_shapes(config).items() if name.startswith("model.layers.0.")]
    return dtype.itemsize * sum(torch.Size(shape).numel() for shape in layer)


def _grams(work: Pass, config: PretrainedConfig) -> list[int]:
    """The sizes of the grams of the layer with most."""
    hidden = int(config.hidden_size)
    return [hidden, attention_size(config), hidden] if isinstance(work, TrunkPass) else [hidden]


def file_bytes(work: Pass) -> int:
    """About the bytes of the pass's statistics file."""
    config = read_config(work.expert)
    hidden, layers = int(config.hidden_size), int(config.num_hidden_layers)
    own = [hidden, attention_size(config)] * layers + [hidden] if isinstance(work, TrunkPass) else [hidden] * layers
    return 8 * sum(gram_length(size) + size for size in own)


def free_bytes(device: str) -> int | None:
    """The free memory of a device: a GPU's, or the machine's with its swap, within the container's limit.

    None if unknown.
    """
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
    """Free memory in bytes; None: unknown.

    Attributes:
        host: of this machine.
        device: of each GPU; None also if the model is in host memory.
    """

    host: int | None
    device: int | None


def free_for(device: str) -> Free:
    """The free memory of this machine, and of the GPU if the models are there."""
    return Free(free_bytes("cpu"), None if device == "cpu" else free_bytes(device))


def states_bytes(left: int | None) -> int:
    """The memory of hidden states by default: half of the bytes that nothing else needs; 4 GiB if these are unknown."""
    return 2**32 if left is None else left // 2


@dataclass(frozen=True)
class Slots:
    """The processes that compute windows side by side, each with a model of its own.

    Attributes:
        processes: their number.
        threads: shards at a time in each.
        here: whether they are on this machine, with the journal.
    """

    processes: int = 1
    threads: int = 1
    here: bool = True


@dataclass(frozen=True)
class Room:
    """A pass that fits.

    Attributes:
        need: its memory.
        states: bytes of hidden states in each process.
    """

    need: Need
    states: int


def room_for(
    work: Pass,
    settings: StatisticsSettings,
    free: Free,
    slots: Slots,
    host_memory: int | None = None,
    tokens: int | None = None,
) -> Room:
    """The memory for a pass's hidden states.

    Args:
        host_memory: bytes of hidden states in all processes; default: half of the memory that nothing else needs.
        tokens: of the text, if they may be fewer than those of a full shard.

    Raises:
        MoergeError: it doesn't fit; names the options to change.
    """
    own, on_gpu = need(work, settings), work.device == "cuda"
    least = own.least if tokens is None else min(own.least, own.token * tokens)
    taken = own.journal + (slots.processes * own.host(slots.threads, on_gpu=on_gpu) if slots.here else 0)
    left = None if free.host is None else free.host - taken
    total = states_bytes(left) if host_memory is None else host_memory
    fits = free.device is None or own.device(slots.threads) <= free.device
    if not fits or total < slots.processes * least or (left is not None and slots.here and total > left):
        raise too_large("not enough memory", work, settings, slots, free, host_memory, least)
    return Room(own, total // slots.processes)


def too_large(
    found: str,
    work: Pass,
    settings: StatisticsSettings,
    slots: Slots,
    free: Free | None = None,
    host_memory: int | None = None,
    least: int | None = None,
) -> MoergeError:
    """The error of a pass that doesn't fit: the memory needed, the memory found, and the settings to change."""
    on_gpu, own = work.device == "cuda", need(work, settings)
    if free is None:
        free = Free(free_bytes("cpu"), None)
    least = own.least if least is None else least
    place = "GPU" if on_gpu else "host"
    device, host = own.device(slots.threads), own.host(slots.threads, on_gpu=on_gpu) + least
    each = f"two layers {decimal(own.weights)}, sums {decimal(own.sums)}, a micro-batch {decimal(own.batch)}"
    asked = f"each of {slots.processes} slots needs {decimal(device)} of {place} memory ({each})"
    asked += f" and {decimal(least)} of host memory for the hidden states of a shard"
    asked += f"; all need {decimal(slots.processes * host + own.journal)} of host memory"
    here = "" if free.host is None else f"this machine has {decimal(free.host)}"
    there = "" if free.device is None else f"the GPU {decimal(free.device)}"
    chosen = "" if host_memory is None else f"--host-memory is {decimal(host_memory)}"
    ways = []
    if host_memory is not None:
        states = slots.processes * least
        size = f"{-(-states // 10**6)}MB"
        ways.append(f"--host-memory {size} or more" if host_memory < states else f"--host-memory {size} or little more")
    if slots.processes > 1:
        ways.append(f"--slots {slots.processes // 2}")
    if settings.precision == "float32":
        ways.append("--precision bfloat16")
    if settings.batch_tokens > settings.context:
        ways.append(f"--batch-tokens {max(settings.context, settings.batch_tokens // 4)} (of a worker)")
    if settings.context > 1:
        ways.append("a smaller --context")
    ways.append("--device cpu, or a larger GPU" if on_gpu else "a machine with more memory, or --device cuda")
    what = "; ".join(filter(None, (found, asked, here, there, chosen)))
    return MoergeError(what, where="memory", todo=f"change one of these: {', '.join(ways)}")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is a failed allocation, on the CPU or a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)
