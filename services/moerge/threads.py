"""The number of torch's threads, and of computations of one thread each."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
State = TypeVar("State")
Result = TypeVar("Result")

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


def in_order(
    threads: ThreadPoolExecutor, states: Sequence[State], call: Callable[[State, T], Result], items: Iterable[T]
) -> Iterator[Result]:
    """The results of calls in the order of items; a call has one of `states` to itself, and at most as many wait.

    With one state, calls are of this thread.
    """
    if len(states) == 1:
        yield from (call(states[0], item) for item in items)
        return
    running = deque[Future[Result]]()
    for number, item in enumerate(items):
        if len(running) == len(states):
            yield running.popleft().result()
        running.append(threads.submit(call, states[number % len(states)], item))
    while running:
        yield running.popleft().result()
