"""Features, the inputs of every layer's MLP, and the inputs of the trunk's linear modules, for real tokens only."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moerge.architectures.families import Family

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


def visit_features(model: PreTrainedModel, batch: Batch, visit: Visit) -> None:
    """Runs the decoder over `batch` and calls visit(layer, x) with x [n, H], one row per real token, layer by layer.

    `model` is a dense causal language model with a causal mask, so padding on the right changes no real token.
    Neither the LM head nor the last MLP is computed.
    """
    mlps = [layer.mlp for layer in model.model.layers]

    def seen(layer: int, x: Tensor) -> None:
        visit(layer, x)
        if layer == len(mlps) - 1:
            raise _AllSeen

    with suppress(_AllSeen):
        _run(model, batch, mlps, seen)


def visit_trunk_inputs(model: PreTrainedModel, family: Family, batch: Batch, visit: Visit) -> None:
    """Runs the decoder and calls visit(i, x), x [n, H or A], for the i-th gram of a trunk contribution."""
    layers = range(model.config.num_hidden_layers)
    patterns = (family.attention.inputs[0], family.attention.output)
    modules = [model.get_submodule(pattern.format(layer=layer)) for layer in layers for pattern in patterns]
    states = _run(model, batch, modules, visit)
    visit(len(modules), _real_rows(states, batch))


@torch.inference_mode()
def _run(model: PreTrainedModel, batch: Batch, modules: Sequence[nn.Module], visit: Visit) -> Tensor:
    """The decoder's last hidden state; visit(i, x) sees what the i-th module reads."""

    def hook(index: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, inputs: visit(index, _real_rows(inputs[0], batch))

    handles = [module.register_forward_pre_hook(hook(index)) for index, module in enumerate(modules)]
    try:
        ids = batch.input_ids.to(model.device, non_blocking=True)
        states: Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
        return states
    finally:
        for handle in handles:
            handle.remove()


def _real_rows(states: Tensor, batch: Batch) -> Tensor:
    """[B, T, H] -> [n, H], without the padding."""
    if bool((batch.lengths == states.shape[1]).all()):
        return states.flatten(0, 1)
    return states[batch.real.to(states.device, non_blocking=True)]
