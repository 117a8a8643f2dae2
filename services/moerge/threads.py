"""The number of torch's threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_threads = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch on one thread, because another number gives other bits."""
    with _threads:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
