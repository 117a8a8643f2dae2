"""Torch on one thread: nested, and in several threads at a time."""

import threading

import torch

from moerge.threads import one_thread


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
