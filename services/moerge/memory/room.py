"""The hidden states that a piece of work has room for on a machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from moerge.errors import MoergeError
from moerge.memory.machine import Free, free_for
from moerge.memory.messages import too_large
from moerge.memory.needs import Need
from moerge_proto.statistics_file import StatisticsSettings

_UNKNOWN = 2**32
"""Bytes of hidden states by default if the free memory is unknown."""
_SHARE_OF_GPU = 0.9
"""Of the rest of its memory; some is lost between blocks."""


@dataclass(frozen=True)
class Slots:
    """The processes that compute windows side by side, each with a model of its own."""

    processes: int = 1
    here: bool = True  # whether they are on this machine, with the journal


@dataclass(frozen=True)
class Room:
    """A pass that fits."""

    need: Need
    states: int  # bytes of hidden states in each process


def room_for(
    need: Need,
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
        MoergeError: it doesn't fit; names the settings to change.
    """
    need = need if tokens is None else replace(need, tokens=min(need.tokens, tokens))
    taken = need.journal + (slots.processes * need.in_host if slots.here else 0)
    left = None if free.host is None else free.host - taken
    total = _half(left) if host_memory is None else host_memory
    is_over = left is not None and slots.here and total > left
    if is_over or total < slots.processes * need.least or not _fits_gpu(need, free):
        raise pass_too_large(need, settings, slots.processes, free, host_memory)
    return Room(need, total // slots.processes)


def pass_too_large(
    need: Need,
    settings: StatisticsSettings,
    processes: int,
    free: Free | None = None,
    host_memory: int | None = None,
    fault: str = "not enough memory",
) -> MoergeError:
    """The error of a pass that doesn't fit; `free`: by default only of the host."""
    ways = [*_ways(need, settings, processes, host_memory)]
    free = free or free_for("cpu")
    return too_large(need, free, ways, processes=processes, host_memory=host_memory, fault=fault)


def _ways(need: Need, settings: StatisticsSettings, processes: int, host_memory: int | None) -> Iterator[str]:
    if host_memory is not None:
        states = processes * need.least
        yield f"`host_memory` {-(-states // 10**6)}MB or {'more' if host_memory < states else 'little more'}"
    if processes > 1:
        yield f"`slots` {processes // 2}"
    if settings.precision == "float32":
        yield "`precision` bfloat16"
    if settings.batch_tokens > settings.context:
        yield f"`batch_tokens` {max(settings.context, settings.batch_tokens // 4)} (of a worker)"
    if settings.context > 1:
        yield "a smaller `context`"
    yield "`device` cpu, or a larger GPU" if need.gpu else "a machine with more memory, or `device` cuda"


def states_for(need: Need, free: Free, host_memory: int | None = None) -> int:
    """The bytes of hidden states when scoring: `host_memory`, by default half of the memory that nothing else needs.

    At least `need.least`, and at most those that fit.

    Raises:
        MoergeError: the least don't fit.
    """
    left = None if free.host is None else free.host - need.in_host
    if (left is not None and need.least > left) or not _fits_gpu(need, free):
        raise too_large(need, free, ["a larger machine", "`precision` bfloat16"])
    total = _half(left) if host_memory is None else host_memory
    return max(need.least, total if left is None else min(total, left))


def room_on_device(need: Need) -> int | None:
    """The bytes of hidden states for which a GPU has room beside the work; None, all, on a CPU."""
    if not need.gpu:
        return None
    free = free_for("cuda").device or 0
    return max(0, int(_SHARE_OF_GPU * (free - need.on_device)))


def tokens_for(need: Need, free: Free) -> int | None:
    """The number of tokens whose hidden states fit; None: unknown; negative or 0 if the work itself doesn't fit."""
    if not _fits_gpu(need, free):
        return 0
    return None if free.host is None else (free.host - need.in_host) // need.token


def require_room(need: Need, free: Free, ways: Sequence[str]) -> None:
    """Raises MoergeError unless there is memory for work without hidden states."""
    if (free.host is not None and need.in_host > free.host) or not _fits_gpu(need, free):
        raise too_large(need, free, ways)


def _fits_gpu(need: Need, free: Free) -> bool:
    return free.device is None or need.on_device <= free.device


def _half(left: int | None) -> int:
    return _UNKNOWN if left is None else left // 2
