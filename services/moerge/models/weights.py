"""The tensors of a model, read from its files one layer at a time."""

from typing import Protocol

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.families.family import EMBEDDING, HEAD


class Weights(Protocol):
    """A model in files. Names are those of transformers' parameters."""

    @property
    def config(self) -> PretrainedConfig: ...
    @property
    def final_norm(self) -> str:
        """The name of the weight of the norm before the head."""

    def __contains__(self, name: str) -> bool: ...
    def layer(self, number: int) -> list[str]:
        """The names of a layer's tensors."""

    def shape(self, name: str) -> tuple[int, ...]: ...
    def tensor(self, name: str) -> Tensor:
        """One tensor, in its stored dtype; mapped from its file if it is whole there."""

    def copy(self, name: str, out: Tensor) -> None:
        """Reads one tensor into `out`, contiguous and of its shape, in the dtype of `out`."""


def own_copy(weights: Weights, name: str, dtype: torch.dtype) -> Tensor:
    """A tensor in a dtype, in new memory."""
    out = torch.empty(weights.shape(name), dtype=dtype)
    weights.copy(name, out)
    return out


def head_name(weights: Weights) -> str:
    """The name of the head's tensor; a tied one is the embedding."""
    return HEAD if HEAD in weights else EMBEDDING
