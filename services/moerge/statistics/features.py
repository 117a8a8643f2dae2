"""Features (the inputs of every layer's MLP) and the inputs of the trunk's linear modules, for tokens that count."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moerge.models.batches import Batch
from moerge.models.families import Family
from moerge.statistics.packed_attention import PACKED, packed_positions

Visit = Callable[[int, Tensor], None]


class _CompleteError(Exception):
    """Ends a pass with the last needed input; it is no error."""

    def __init__(self, states: Tensor) -> None:
        self.states = states


def visit_features(model: PreTrainedModel, batch: Batch, visit: Visit, layers: range | None = None) -> None:
    """Runs the decoder over `batch` and calls visit(layer, x), x [n, H], a row per token that counts, layer by layer.

    `model` is a dense causal language model with a causal mask, so padding on the right changes no real token.
    `layers` are the consecutive layers to visit, by default all. The last one's MLP, later layers and the LM head are
    not computed.
    """
    layers = range(model.config.num_hidden_layers) if layers is None else layers
    modules = {layer: model.model.layers[layer].mlp for layer in layers}
    inputs = _arguments(model, batch)
    run(model, batch, inputs, modules, visit, modules[layers[-1]])


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
    inputs = _arguments(model, batch)
    if layers.stop == every:
        visit(2 * every, counted_rows(model, run(model, batch, inputs, modules, visit), batch))
    else:
        run(model, batch, inputs, modules, visit, modules[max(modules)])


def _arguments(model: PreTrainedModel, batch: Batch) -> dict[str, Any]:
    return {"input_ids": placed(ids(model, batch), model.device), **positions(model, batch, model.device)}


def ids(model: PreTrainedModel, batch: Batch) -> Tensor:
    """[B, T] int64, or [1, real tokens] if they are packed."""
    return batch.input_ids[batch.real][None] if is_packed(model) else batch.input_ids


def positions(model: PreTrainedModel, batch: Batch, device: torch.device) -> dict[str, Any]:
    """The decoder's further arguments: the starts of packed documents."""
    if not is_packed(model):
        return {}
    return {name: placed(value, device) for name, value in packed_positions(batch).items()}


def is_packed(model: PreTrainedModel) -> bool:
    """Tell whether the model reads documents end to end, without padding."""
    return bool(model.config._attn_implementation == PACKED)


@torch.inference_mode()
def run(
    model: PreTrainedModel,
    batch: Batch,
    inputs: Mapping[str, Any],
    modules: Mapping[int, nn.Module],
    visit: Visit,
    until: nn.Module | None = None,
) -> Tensor:
    """Runs the decoder; visit(i, x) gets the input of module i, [n, size], of tokens that count.

    Returns:
        The input of the module `until`, which and whose successors are not computed, or the decoder's last hidden
        states: [B, T, H], or [1, real tokens, H] if they are packed.
    """

    def hook(index: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, given: visit(index, counted_rows(model, given[0], batch))

    def stop(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        raise _CompleteError(given[0])

    _begin_anew(model.model.rotary_emb)
    handles = [module.register_forward_pre_hook(hook(index)) for index, module in modules.items()]
    if until is not None:
        handles.append(until.register_forward_pre_hook(stop))
    try:
        states: Tensor = model.model(**inputs, use_cache=False).last_hidden_state
        return states
    except _CompleteError as complete:
        return complete.states
    finally:
        for handle in handles:
            handle.remove()


def _begin_anew(rotary: Any) -> None:
    """Lets a dynamic rope forget the longest earlier text, so that a micro-batch's sums depend on itself alone."""
    if rotary.max_seq_len_cached != rotary.original_max_seq_len:
        rotary.max_seq_len_cached, rotary.inv_freq = rotary.original_max_seq_len, rotary.original_inv_freq


def counted_rows(model: PreTrainedModel, states: Tensor, batch: Batch) -> Tensor:
    """[B, T, H], or packed ones, -> [n, H] of the tokens that count."""
    return _packed_rows(states[0], batch) if is_packed(model) else _rows(states, batch)


def placed(value: Any, device: torch.device) -> Any:
    """A tensor on the device, copied during earlier computations; other values unchanged."""
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
