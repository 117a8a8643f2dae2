"""The number of torch's threads, and of computations of one thread each."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

AT_ONCE = 4
"""Computations at a time, at most: each has its memory."""

_lock = threading.Lock()
_before: list[int] = []
"""The numbers before each open `one_thread`."""


def at_once() -> int:
    """The number of computations of one thread each that run at a time."""
    return min(torch.get_num_threads(), AT_ONCE)


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch on one thread, because another number gives other bits. May be nested, and open in several threads."""
    with _lock:
        _before.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            last = _before.pop()
            if not _before:
                torch.set_num_threads(last)
