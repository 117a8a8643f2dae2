"""Messages about memory."""

from collections.abc import Iterator, Sequence

from rich.filesize import decimal

from moerge.errors import MoergeError
from moerge.memory.machine import Free
from moerge.memory.needs import Need


def described(need: Need, tokens: int | None = None, processes: int = 1) -> str:
    """The words for a need of `processes`, with the hidden states of `tokens`, by default the least."""
    tokens = need.tokens if tokens is None else tokens
    parts = ", ".join(f"{name} {decimal(size)}" for name, size in need.device.items())
    who = need.work if need.work != "a pass" else f"each of {processes} slots"
    text = f"{who} needs {decimal(need.on_device)} of {'GPU' if need.gpu else 'host'} memory ({parts})"
    if tokens:
        text += f" and {decimal(tokens * need.token)} of host memory for the hidden states of {tokens:,} tokens"
    if need.host or need.token:
        host = processes * (need.in_host + tokens * need.token) + need.journal
        text += f"; together {decimal(host)} of host memory"
    return text


def machine(free: Free) -> Iterator[str]:
    if free.host is not None:
        yield f"this machine has {decimal(free.host)}"
    if free.device is not None:
        yield f"the GPU has {decimal(free.device)}"


def too_large(
    need: Need,
    free: Free,
    ways: Sequence[str],
    *,
    tokens: int | None = None,
    processes: int = 1,
    host_memory: int | None = None,
    fault: str = "not enough memory",
) -> MoergeError:
    """The error of work that doesn't fit; `ways`: remedies; `host_memory`: bytes of hidden states in the settings."""
    chosen = [] if host_memory is None else [f"`host_memory` is {decimal(host_memory)}"]
    what = "; ".join([fault, described(need, tokens, processes), *machine(free), *chosen])
    return MoergeError(what, where="memory", todo=f"change one of these: {', '.join(ways)}")
