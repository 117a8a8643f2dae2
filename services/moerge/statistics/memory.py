"""The memory that a pass needs and a machine has, compared before the pass starts."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.filesize import decimal
from transformers import PretrainedConfig

from moerge.errors import MoergeError
from moerge.models.bounds import attention_size
from moerge.models.config import read_config
from moerge.models.reader import model_shapes
from moerge.statistics.passes import RouterPass, TrunkPass, in_groups
from moerge_proto.statistics_file import StatisticsSettings

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Need:
    """The least memory of one slot, and of the process with the journal, in bytes.

    Attributes:
        weights: of the model, in its precision.
        sums: a float64 gram and sum of each of the pass's layers.
        batch: a layer's MLP activations for one micro-batch.
    """

    weights: int
    sums: int
    batch: int

    @property
    def total(self) -> int:
        return self.weights + self.sums + self.batch

    @property
    def journal(self) -> int:
        """Bytes of the journal: int64 triangles of its sums and of one added shard."""
        return self.sums

    def __str__(self) -> str:
        parts = f"weights {decimal(self.weights)}, sums {decimal(self.sums)}, a micro-batch {decimal(self.batch)}"
        return f"{decimal(self.total)} ({parts})"


def need(work: RouterPass | TrunkPass, settings: StatisticsSettings) -> Need:
    """The memory that a pass needs, by the expert's config."""
    return _need(work, read_config(work.expert), settings)


def _need(work: RouterPass | TrunkPass, config: PretrainedConfig, settings: StatisticsSettings) -> Need:
    size = getattr(torch, settings.precision).itemsize
    shapes = model_shapes(config)
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    tokens = max(settings.batch_tokens, settings.context)
    return Need(
        weights=size * sum(torch.Size(shape).numel() for shape in shapes.values()),
        sums=_sums(work, config),
        batch=size * tokens * (2 * config.intermediate_size + 2 * config.hidden_size),
    )


def _sums(work: RouterPass | TrunkPass, config: PretrainedConfig) -> int:
    hidden, every = int(config.hidden_size), int(config.num_hidden_layers)
    layers = range(every) if work.layers is None else work.layers
    grams = [hidden] * len(layers)
    if isinstance(work, TrunkPass):
        grams = [*grams, *[attention_size(config)] * len(layers), *[hidden] * (layers.stop == every)]
    return 8 * sum(gram * gram + gram for gram in grams)


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
    for limit in map(Path, _CGROUPS):
        if limit.is_file() and (found := limit.read_text("utf-8").strip()).isdecimal():
            free = min(free, int(found))
    return free


@dataclass(frozen=True)
class Free:
    """Free memory in bytes; None: unknown.

    Attributes:
        host: of this machine, for the journal.
        slot: of each slot; equal to `host` if all slots and the journal share the host's memory.
    """

    host: int | None
    slot: int | None


def layer_groups(
    work: RouterPass | TrunkPass,
    settings: StatisticsSettings,
    free: Free,
    slots: int,
    *,
    shared: bool,
    groups: int | None = None,
    begun: int = 1,
) -> list[RouterPass | TrunkPass]:
    """The passes over a pass's layer groups: `groups`, or the fewest that fit, but at least `begun`.

    Args:
        free: free memory.
        slots: shards computed at a time, each with its own model.
        shared: whether all slots and the journal share the host's memory; otherwise each slot has its own.

    Raises:
        MoergeError: they don't fit, or there are fewer layers than groups; names the options to change.
    """
    config = read_config(work.expert)
    own = _need(work, config, settings)
    layers: int = config.num_hidden_layers
    for number in range(min(begun, layers), layers + 1) if groups is None else [groups]:
        passes = in_groups(work, layers, number)
        if _fits(replace(own, sums=_sums(passes[-1], config)), free, slots, shared=shared):
            return passes
    raise too_large("not enough memory", passes[-1], settings, slots, free)


def _fits(own: Need, free: Free, slots: int, *, shared: bool) -> bool:
    host = own.journal + (own.total * slots if shared else 0)
    return (free.host is None or host <= free.host) and (shared or free.slot is None or own.total <= free.slot)


def too_large(
    found: str, work: RouterPass | TrunkPass, settings: StatisticsSettings, slots: int, free: Free | None = None
) -> MoergeError:
    """The error of a pass that doesn't fit: the memory needed, the memory found, and the settings to change."""
    config, gpu = read_config(work.expert), work.device == "cuda"
    own = _need(work, config, settings)
    if free is None:
        free = Free(free_bytes("cpu"), None)
    here = "" if free.host is None else f"this machine has {decimal(free.host)}"
    there = "" if free.slot is None or not gpu else f"the GPU {decimal(free.slot)}"
    asked = f"each of {slots} slots needs at least {own}, the journal {decimal(own.journal)}"
    ways = []
    every = config.num_hidden_layers
    layers = every if work.layers is None else len(work.layers)
    if layers > 1:
        ways.append(f"--layer-groups {-(-every // (layers // 2))}")
    if slots > 1 and not gpu:
        ways.append(f"--slots {slots // 2}")
    if settings.precision == "float32":
        ways.append("--precision bfloat16")
    if settings.batch_tokens > settings.context:
        ways.append(f"--batch-tokens {max(settings.context, settings.batch_tokens // 4)}")
    if settings.context > 1:
        ways.append("a smaller --context")
    ways.append("--device cpu, or a larger GPU" if gpu else "--device cuda on a GPU with more memory")
    what = "; ".join(filter(None, (found, asked, here, there)))
    return MoergeError(what, where="memory", todo=f"change one of these: {', '.join(ways)}")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is a failed allocation, on the CPU or a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)
