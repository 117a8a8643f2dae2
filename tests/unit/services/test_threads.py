"""Torch on one thread: nested, and in several threads at a time. Results in order."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from moerge.threads import in_order, one_thread


def test_one_thread_may_be_nested_and_open_in_several_threads() -> None:
    before, seen = torch.get_num_threads(), list[int]()

    def work() -> None:
        with one_thread():
            seen.append(torch.get_num_threads())

    torch.set_num_threads(3)
    try:
        with one_thread(), one_thread():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(timeout=60)
            assert torch.get_num_threads() == 1
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(before)


def test_results_come_in_order_and_no_state_is_shared() -> None:
    states, first, begun = [threading.Lock(), threading.Lock()], threading.Event(), list[int]()

    def call(state: threading.Lock, item: int) -> int:
        begun.append(item)
        assert state.acquire(blocking=False)
        if item == 0:
            first.wait(timeout=60)
        elif item == 1:
            first.set()
        state.release()
        return item

    with ThreadPoolExecutor(2) as threads:
        results = in_order(threads, states, call, range(7))
        assert next(results) == 0
        assert sorted(begun) == [0, 1]
        assert list(results) == [1, 2, 3, 4, 5, 6]
