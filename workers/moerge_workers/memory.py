"""What the model and its sums take, and what the machine has: what doesn't fit is told before hours are lost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from rich.filesize import decimal
from transformers import PretrainedConfig

from moerge.errors import MoergeError
from moerge.models.bounds import attention_size
from moerge.models.config import read_config
from moerge.models.reader import model_shapes
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.settings import Settings

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Need:
    """Bytes that one slot takes at least, and the worker itself.

    Attributes:
        weights: of the model, in the precision that it computes in.
        sums: a float64 gram and sum of every layer that the pass sums.
        batch: what the MLP of a layer holds of one micro-batch.
    """

    weights: int
    sums: int
    batch: int

    @property
    def total(self) -> int:
        return self.weights + self.sums + self.batch

    @property
    def journal(self) -> int:
        """What the worker itself takes: int64 triangles of the journal, and of one shard that is added to it."""
        return self.sums

    def __str__(self) -> str:
        parts = f"weights {decimal(self.weights)}, sums {decimal(self.sums)}, a micro-batch {decimal(self.batch)}"
        return f"{decimal(self.total)} ({parts})"


def need(work: RouterPass | TrunkPass, settings: StatisticsSettings) -> Need:
    """What a pass takes, from the expert's config alone."""
    config = read_config(work.expert)
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


@dataclass(frozen=True)
class Free:
    """Memory that can be had, in bytes; None: unknown.

    Attributes:
        host: of this machine, where the worker keeps the journal.
        slot: of each slot; on this machine's processor, of all slots and the worker together, so the same.
    """

    host: int | None
    slot: int | None


def free_memory(settings: Settings) -> Free:
    """What this machine has; an existing cluster's nodes are not asked."""
    host = free_bytes("cpu")
    if settings.ray_address is not None:
        return Free(host, None)
    return Free(host, host if settings.device == "cpu" else free_bytes(settings.device))


def _grouped(work: RouterPass | TrunkPass, layers: int, groups: int) -> list[RouterPass | TrunkPass]:
    """The pass in so many over consecutive layers, in their order; the last takes the most memory."""
    if groups > layers:
        found = f"the model has {layers} layers, which {groups} groups can't share"
        raise MoergeError(found, where="--layer-groups", todo=f"choose at most {layers}")
    if groups == 1:
        return [work]
    ends = [layers * number // groups for number in range(groups + 1)]
    return [replace(work, layers=range(*each)) for each in pairwise(ends)]


def that_fit(
    work: RouterPass | TrunkPass, settings: Settings, free: Free, begun: int = 1
) -> list[RouterPass | TrunkPass]:
    """The passes over a pass's layer groups: as many as the settings say, or the fewest that fit, but at least `begun`.

    Raises:
        MoergeError: they don't fit, or the settings say more than there are layers; says which setting to change.
    """
    config, own = read_config(work.expert), need(work, settings.statistics)
    layers: int = config.num_hidden_layers
    for groups in range(min(begun, layers), layers + 1) if settings.layer_groups is None else [settings.layer_groups]:
        passes = _grouped(work, layers, groups)
        if _fits(replace(own, sums=_sums(passes[-1], config)), settings, free):
            return passes
    raise too_large("it can't be enough memory", passes[-1], settings.statistics, settings.slots, free)


def _fits(own: Need, settings: Settings, free: Free) -> bool:
    shared = settings.ray_address is None and settings.device == "cpu"
    host = own.journal + (own.total * settings.slots if shared else 0)
    return (free.host is None or host <= free.host) and (shared or free.slot is None or own.total <= free.slot)


def described(passes: Sequence[RouterPass | TrunkPass]) -> str:
    """In which layer groups passes sum, as in "2 layer groups: 0-15, 16-31"."""
    groups = [each.layers for each in passes if each.layers is not None]
    if not groups:
        return "1 layer group"
    return f"{len(groups)} layer groups: {', '.join(map(named, groups))}"


def named(layers: range) -> str:
    """The first and the last layer, as in "16-31"."""
    return f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])


def too_large(
    found: str, work: RouterPass | TrunkPass, settings: StatisticsSettings, slots: int, free: Free | None = None
) -> MoergeError:
    """The error of a pass that doesn't fit: what it takes, what there is, and which settings to change."""
    own, gpu = need(work, settings), work.device == "cuda"
    if free is None:
        free = Free(free_bytes("cpu"), None)
    here = "" if free.host is None else f"this machine has {decimal(free.host)}"
    there = "" if free.slot is None or not gpu else f"the GPU {decimal(free.slot)}"
    asked = f"each of {slots} slots takes at least {own}, the worker itself {decimal(own.journal)}"
    ways = []
    every = read_config(work.expert).num_hidden_layers
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
    """Whether an error is of memory that can't be had, on the processor or a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)
