"""Micro-batches."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """A micro-batch, padded on the right.

    Attributes:
        input_ids: [B, T] int64.
        lengths: [B] int64, real tokens of each row.
        chosen: [B, T] bool, which of the real tokens count; None if all do. The model reads the others too.
    """

    input_ids: Tensor
    lengths: Tensor
    chosen: Tensor | None = None

    @property
    def real(self) -> Tensor:  # [B, T] bool
        return torch.arange(self.input_ids.shape[1]) < self.lengths[:, None]

    @property
    def counted(self) -> Tensor:  # [B, T] bool
        """The tokens whose features are summed."""
        return self.real if self.chosen is None else self.real & self.chosen
