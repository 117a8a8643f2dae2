"""What holds for every test: one thread, no hub, no bars."""

import importlib
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported, so before transformers is

import torch
from transformers.utils import logging

from support.servers import postgres, s3, s3_server

__all__ = ["postgres", "s3", "s3_server"]

torch.set_num_threads(1)
logging.disable_progress_bar()


def pytest_collection_finish() -> None:
    importlib.import_module("support.frozen")
