"""What holds for every test: one thread, no hub, no bars."""

import os

import torch
from transformers.utils import logging

os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)
logging.disable_progress_bar()
