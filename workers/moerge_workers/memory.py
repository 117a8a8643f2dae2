"""What the model and its sums take, and what the machine has: what doesn't fit is told before hours are lost."""

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.filesize import decimal

from moerge.architectures.config import read_config
from moerge.checkpoint.reader import model_shapes
from moerge.errors import MoergeError
from moerge.statistics.bounds import attention_size
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_proto.statistics_file import StatisticsSettings

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Need:
    """Bytes that one slot takes at least.

    Attributes:
        weights: of the model, in the precision that it computes in.
        sums: a float64 gram and sum of every layer.
        batch: what the MLP of a layer holds of one micro-batch.
    """

    weights: int
    sums: int
    batch: int

    @property
    def total(self) -> int:
        return self.weights + self.sums + self.batch

    def __str__(self) -> str:
        parts = f"weights {decimal(self.weights)}, sums {decimal(self.sums)}, a micro-batch {decimal(self.batch)}"
        return f"{decimal(self.total)} ({parts})"


def need(work: RouterPass | TrunkPass, settings: StatisticsSettings) -> Need:
    """What a slot takes, from the expert's config alone."""
    config = read_config(work.expert)
    size = getattr(torch, settings.precision).itemsize
    shapes = model_shapes(config)
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    grams = [hidden] * layers
    if isinstance(work, TrunkPass):
        grams = [*grams, *[attention_size(config)] * layers, hidden]
    tokens = max(settings.batch_tokens, settings.context)
    return Need(
        weights=size * sum(torch.Size(shape).numel() for shape in shapes.values()),
        sums=8 * sum(gram * gram + gram for gram in grams),
        batch=size * tokens * (2 * config.intermediate_size + 2 * hidden),
    )


def free_bytes(device: str) -> int | None:
    """Memory that a device can give: a GPU's, or the machine's with its swap, within the container's limit.

    None if the system doesn't tell.
    """
    if device == "cuda":
        return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
    except OSError:
        return None
    free = sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    for limit in map(Path, _CGROUPS):
        if limit.is_file() and (found := limit.read_text("utf-8").strip()).isdecimal():
            free = min(free, int(found))
    return free


def require_room(work: RouterPass | TrunkPass, settings: StatisticsSettings, slots: int, free: int | None) -> None:
    """Requires that what all slots of this machine take is there; on GPUs each has its own.

    Raises:
        MoergeError: says which setting to change.
    """
    asked = need(work, settings).total * (1 if work.device == "cuda" else slots)
    if free is not None and asked > free:
        raise too_large("it can't be enough memory", work, settings, slots, free)


def too_large(
    found: str, work: RouterPass | TrunkPass, settings: StatisticsSettings, slots: int, free: int | None = None
) -> MoergeError:
    """The error of a model that doesn't fit: what it takes, what there is, and which settings to change."""
    free = free_bytes(work.device) if free is None and work.device == "cpu" else free
    there = f"{'the GPU' if work.device == 'cuda' else 'this machine'} has {decimal(free)}" if free is not None else ""
    asked = f"each of {slots} slots takes at least {need(work, settings)}"
    ways = []
    if slots > 1 and work.device == "cpu":
        ways.append(f"--slots {slots // 2}")
    if settings.precision == "float32":
        ways.append("--precision bfloat16")
    if settings.batch_tokens > settings.context:
        ways.append(f"--batch-tokens {max(settings.context, settings.batch_tokens // 4)}")
    if settings.context > 1:
        ways.append("a smaller --context")
    ways.append("--device cuda on a GPU with more memory" if work.device == "cpu" else "--device cpu, or a larger GPU")
    what = "; ".join(filter(None, (found, asked, there)))
    return MoergeError(what, where="memory", todo=f"change one of these: {', '.join(ways)}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is of memory that can't be had, on the processor or a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)
