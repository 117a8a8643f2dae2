"""The tests' own promises."""

import gc

import torch
from huggingface_hub import constants


def test_no_test_asks_the_hub_and_each_runs_on_one_thread() -> None:
    assert constants.HF_HUB_OFFLINE
    assert torch.get_num_threads() == 1


def test_garbage_is_collected_again() -> None:
    assert gc.isenabled()
