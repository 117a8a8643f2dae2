"""The number of torch's threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_before: list[int] = []
"""The numbers before each open `one_thread`."""


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
