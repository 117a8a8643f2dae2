"""Inputs of a decoder's modules, for tokens that count."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from moerge.models.batches import Batch
from moerge.models.dense import rope_of
from moerge.statistics.packed_attention import PACKED, packed_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # it takes 1.5 s, and a process without a model never needs it

Visit = Callable[[int, Tensor], None]


class _CompleteError(Exception):
    """Ends a pass with the last needed input; not an error."""

    def __init__(self, states: Tensor) -> None:
        self.states = states


@dataclass(frozen=True)
class Ready:
    """A micro-batch as a model reads it, with padding or packed.

    Attributes:
        ids: [B, T] int64, or [1, real tokens], in host memory.
        positions: arguments of a packed micro-batch, on the device.
        rows: [n] int64, the numbers of the tokens that count among those of `ids`, on the device; None: all count.
    """

    ids: Tensor
    positions: Mapping[str, Any]
    rows: Tensor | None


def ready(model: "PreTrainedModel", batch: Batch, device: torch.device) -> Ready:
    ids, counted, positions = batch.input_ids, batch.counted, dict[str, Any]()
    if model.config._attn_implementation == PACKED:
        ids, counted, positions = ids[batch.real][None], counted[batch.real], packed_positions(batch)
    rows = None if bool(counted.all()) else placed(counted.flatten().nonzero()[:, 0], device)
    return Ready(ids, {name: placed(value, device) for name, value in positions.items()}, rows)


@torch.inference_mode()
def run(
    model: "PreTrainedModel",
    batch: Ready,
    inputs: Mapping[str, Any],
    modules: Mapping[int, nn.Module],
    visit: Visit,
    until: nn.Module | None = None,
) -> Tensor:
    """Runs the decoder on `inputs` and the batch's positions; visit(i, x) gets the input [n, size] of module i, of
    tokens that count.

    Returns:
        The input of the module `until`, which isn't computed, or the last hidden states: [B, T, H], or
        [1, real tokens, H] if they are packed.
    """

    def hook(index: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, given: visit(index, counted_rows(given[0], batch))

    def stop(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        raise _CompleteError(given[0])

    if (rope := rope_of(model)) is not None:
        _begin_anew(model.model.get_submodule(rope))
    handles = [module.register_forward_pre_hook(hook(index)) for index, module in modules.items()]
    if until is not None:
        handles.append(until.register_forward_pre_hook(stop))
    try:
        states: Tensor = model.model(**inputs, **batch.positions, use_cache=False).last_hidden_state
        return states
    except _CompleteError as complete:
        return complete.states
    finally:
        for handle in handles:
            handle.remove()


def _begin_anew(rotary: Any) -> None:
    """Resets a dynamic rope, so that the sums of a micro-batch don't depend on earlier ones."""
    if rotary.max_seq_len_cached != rotary.original_max_seq_len:
        rotary.max_seq_len_cached, rotary.inv_freq = rotary.original_max_seq_len, rotary.original_inv_freq


def counted_rows(states: Tensor, batch: Ready) -> Tensor:
    """[B, T, H], or packed [1, real tokens, H], -> [n, H] of the tokens that count."""
    flat = states.flatten(0, -2)
    return flat if batch.rows is None else flat.index_select(0, batch.rows)


def placed(value: Any, device: torch.device) -> Any:
    """A tensor on the device, copied during earlier computations; other values unchanged."""
    if not isinstance(value, Tensor) or device.type == "cpu":
        return value
    return value.pin_memory().to(device, non_blocking=True)
