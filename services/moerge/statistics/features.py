"""Features (the inputs of every layer's MLP) and the inputs of the trunk's linear modules, for tokens that count."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moerge.models.batches import Batch
from moerge.models.families import Family
from moerge.statistics.packed_attention import PACKED, packed_inputs

Visit = Callable[[int, Tensor], None]


class _Complete(Exception):  # noqa: N818  # not an error: it ends the pass
    """Stops the decoder after the last needed input."""


def visit_features(model: PreTrainedModel, batch: Batch, visit: Visit, layers: range | None = None) -> None:
    """Runs the decoder over `batch` and calls visit(layer, x), x [n, H], a row per token that counts, layer by layer.

    `model` is a dense causal language model with a causal mask, so padding on the right changes no real token.
    `layers` are the consecutive layers to visit, by default all. The last one's MLP, later layers and the LM head are
    not computed.
    """
    layers = range(model.config.num_hidden_layers) if layers is None else layers
    _run_to_last(model, batch, {layer: model.model.layers[layer].mlp for layer in layers}, visit)


def visit_trunk_inputs(
    model: PreTrainedModel, family: Family, batch: Batch, visit: Visit, layers: range | None = None
) -> None:
    """Runs the decoder and calls visit(i, x), x [n, H or A], for the i-th gram of a trunk contribution.

    `layers` are as in `visit_features`; the last one includes the head's inputs.
    """
    every = model.config.num_hidden_layers
    layers = range(every) if layers is None else layers
    patterns = (family.attention.inputs[0], family.attention.output)
    modules = {
        2 * layer + place: model.get_submodule(pattern.format(layer=layer))
        for layer in layers
        for place, pattern in enumerate(patterns)
    }
    if layers.stop == every:
        visit(2 * every, _run(model, batch, modules, visit))
    else:
        _run_to_last(model, batch, modules, visit)


def _run_to_last(model: PreTrainedModel, batch: Batch, modules: Mapping[int, nn.Module], visit: Visit) -> None:
    """Runs the decoder up to the last module's input."""
    last = max(modules)

    def seen(index: int, x: Tensor) -> None:
        visit(index, x)
        if index == last:
            raise _Complete

    with suppress(_Complete):
        _run(model, batch, modules, seen)


@torch.inference_mode()
def _run(model: PreTrainedModel, batch: Batch, modules: Mapping[int, nn.Module], visit: Visit) -> Tensor:
    """The decoder's last hidden states [n, H] of tokens that count; visit(i, x) gets the input of module i."""
    packed = model.config._attn_implementation == PACKED
    inputs = packed_inputs(batch) if packed else {"input_ids": batch.input_ids}

    def rows(states: Tensor) -> Tensor:
        return _packed_rows(states[0], batch) if packed else _rows(states, batch)

    def hook(index: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, inputs: visit(index, rows(inputs[0]))

    handles = [module.register_forward_pre_hook(hook(index)) for index, module in modules.items()]
    try:
        placed = {name: _placed(value, model.device) for name, value in inputs.items()}
        states: Tensor = model.model(**placed, use_cache=False).last_hidden_state
        return rows(states)
    finally:
        for handle in handles:
            handle.remove()


def _placed(value: Any, device: torch.device) -> Any:
    """A tensor on the device, copied during the computation of the last batch; other values unchanged."""
    if not isinstance(value, Tensor) or device.type != "cuda":
        return value
    return value.pin_memory().to(device, non_blocking=True)


def _rows(states: Tensor, batch: Batch) -> Tensor:
    """[B, T, H] -> [n, H], tokens that count."""
    counted = batch.counted
    if bool(counted.all()):
        return states.flatten(0, 1)
    return states[counted.to(states.device, non_blocking=True)]


def _packed_rows(states: Tensor, batch: Batch) -> Tensor:
    """[real tokens, H] -> [n, H], tokens that count."""
    counted = batch.counted[batch.real]
    if bool(counted.all()):
        return states
    return states[counted.to(states.device, non_blocking=True)]
