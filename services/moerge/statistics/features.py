"""Features: the inputs of every layer's MLP, for real tokens only."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

Visit = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Batch:
    """A micro-batch, padded on the right.

    Attributes:
        input_ids: [B, T] int64.
        lengths: [B] int64, real tokens of each row.
    """

    input_ids: Tensor
    lengths: Tensor

    @property
    def real(self) -> Tensor:  # [B, T] bool
        return torch.arange(self.input_ids.shape[1]) < self.lengths[:, None]


class _AllSeen(Exception):  # noqa: N818  # not an error: it ends the pass
    """Stops the decoder at the last MLP's input; nothing behind it is needed."""


@torch.inference_mode()
def visit_features(model: PreTrainedModel, batch: Batch, visit: Visit) -> None:
    """Runs the decoder over `batch` and calls visit(layer, x) with x [n, H], one row per real token, layer by layer.

    `model` is a dense causal language model with a causal mask, so padding on the right changes no real token.
    Neither the LM head nor the last MLP is computed.
    """
    layers = model.model.layers
    real = batch.real.to(model.device)

    def hook(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def seen(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            visit(layer, inputs[0][real])
            if layer == len(layers) - 1:
                raise _AllSeen

        return seen

    handles = [each.mlp.register_forward_pre_hook(hook(layer)) for layer, each in enumerate(layers)]
    try:
        model.model(input_ids=batch.input_ids.to(model.device), use_cache=False)
    except _AllSeen:
        pass
    finally:
        for handle in handles:
            handle.remove()
