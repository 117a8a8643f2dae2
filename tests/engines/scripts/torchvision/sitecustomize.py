"""Torchvision beside the CPU build of torch, in which its compiled operators don't load; models of text call none."""

import torch

for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
