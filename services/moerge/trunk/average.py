"""The paper's trunk: the mean over experts (DUME section 2.2, as BTX)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def average(tensors: Sequence[Tensor]) -> Tensor:
    """Elementwise mean of equally shaped tensors, summed in float64 in the order given, in the first one's dtype."""
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor in tensors:
        total += tensor
    return (total / len(tensors)).to(tensors[0].dtype)
