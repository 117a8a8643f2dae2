"""What holds for every test: one thread, no hub, no bars."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported, so before transformers is

import pytest
import torch
from transformers.utils import logging

from support.demo import demo
from support.servers import postgres, s3, s3_server

__all__ = ["demo", "postgres", "s3", "s3_server"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With --dist loadgroup, a file's tests run in one process, and so do all that need the demo."""
    for item in items:
        shares_demo = "demo" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("demo" if shares_demo else item.nodeid.partition("::")[0]))


torch.set_num_threads(1)
logging.disable_progress_bar()
