"""A decoder that reads its layers from files, one after another; two are in memory."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.cache_utils import KVSharingDict

from moerge.models.batches import Batch
from moerge.models.dense import assign, empty_model, require_all, rope_of
from moerge.models.families.common import LAYER
from moerge.models.families.family import layer_ranges, module_of
from moerge.models.families.registry import ends_of, family_of
from moerge.models.weights import Weights, own_copy
from moerge.statistics.accumulate import Sum
from moerge.statistics.features import Visit, counted_rows, ids, placed, positions, run
from moerge.statistics.layer_inputs import LayerInputs
from moerge.statistics.packed_attention import PACKED
from moerge.statistics.passes import Input

_ALIGNED = 256  # elements


class LayerFiles:
    """The tensors of one layer after another, on a device; the next layer is read ahead.

    Two blocks, each as large as the largest layer, are used in turns: allocating again would fragment the device's
    memory, and layers may differ.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        self._weights, self._dtype, self._device = weights, dtype, device
        size = max(self._size(number) for number in range(len(layer_ranges(weights.config))))
        with torch.inference_mode(mode=False):  # another thread fills it
            self._memory = [torch.empty(size, dtype=dtype, device=device) for _ in range(2)]
        self._ahead = ThreadPoolExecutor(1)
        self._next: tuple[int, Future[dict[str, Tensor]]] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def layer(self, number: int) -> dict[str, Tensor]:
        """The tensors of a layer by name; overwrites those of the layer before."""
        if self._next is None or self._next[0] != number:
            self._next = number, self._ahead.submit(self._read, number)
        result = self._next[1].result()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        last = len(layer_ranges(self._weights.config)) - 1
        self._next = (number + 1, self._ahead.submit(self._read, number + 1)) if number < last else None
        return result

    def _size(self, number: int) -> int:
        return sum(self._aligned(self._weights.shape(name)) for name in self._weights.layer(number))

    def _aligned(self, shape: Sequence[int]) -> int:
        """The elements of a tensor and of the space behind it, because products of unaligned memory may differ."""
        return -(-math.prod(shape) // _ALIGNED) * _ALIGNED

    def _read(self, number: int) -> dict[str, Tensor]:
        free, result = self._memory[number % 2], dict[str, Tensor]()
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            for name in self._weights.layer(number):
                shape = self._weights.shape(name)
                result[name] = free[: math.prod(shape)].view(shape)
                free = free[self._aligned(shape) :]
                if self._stream is None:
                    self._weights.copy(name, result[name])
                else:
                    pinned = torch.empty(shape, dtype=self._dtype, pin_memory=True)
                    self._weights.copy(name, pinned)
                    result[name].copy_(pinned, non_blocking=True)
        return result


class _Passed(nn.Module):
    block_type = None  # Nemotron-H reads it

    def forward(self, hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
        return hidden_states


class Decoder:
    """A decoder that has one layer's weights at a time; for one thread, because hooks belong to a module.

    With `packs`, documents in bfloat16 on a GPU are read end to end. A position's hidden states are its residual, and
    behind it the keys and values that later layers read.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, device: torch.device, *, packs: bool = True) -> None:
        self._model, self._device, self._dtype = empty_model(weights.config, dtype), device, dtype
        packs = packs and device.type == "cuda" and dtype is torch.bfloat16
        if packs and family_of(weights.config).packs(weights.config):
            self._model.set_attn_implementation(PACKED)
        decoder: Any = self._model.model
        if (rope := rope_of(self._model)) is not None:
            decoder.get_submodule(rope).to(device)
        assign(self._model, weights.final_norm, own_copy(weights, weights.final_norm, dtype).to(device))
        self._ranges = layer_ranges(weights.config)
        self._layers, self.norm = list(decoder.layers), self.module(module_of(weights.final_norm))
        ends, self._hidden = ends_of(weights.config), int(weights.config.hidden_size)
        self._factor, self._shared = ends.factor(weights.config, dtype), ends.shared(weights.config)
        self._carried, width = ends.carried(weights.config), ends.layer_input(weights.config)
        self._inputs = LayerInputs(weights, self._model, width, self._factor, device) if width else None
        self._seen = KVSharingDict()
        decoder.embedding_multiplier = 1.0  # Granite's applies to what every layer is given
        decoder.layers = nn.ModuleList(_Passed() for _ in self._layers)

    def embedded(self, batch: Batch, embedding: Tensor) -> Tensor:
        """The first hidden states of a batch, in host memory; embedding [V, H], as stored."""
        states = embedding[ids(self._model, batch)].to(self._dtype)
        states = states if self._factor == 1 else states * self._factor
        states = pad(states, (0, self._carried)) if self._carried else states
        return states.pin_memory() if self._device.type == "cuda" else states

    def hold(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Gives a layer its weights; CheckpointError if one is missing."""
        for layer in self._ranges[number]:
            self._model.model.layers[layer] = self._layers[layer]
        for name, tensor in tensors.items():
            assign(self._model, name, tensor)
        if self._inputs is not None:
            self._inputs.hold(number)
        for layer in self._ranges[number]:
            require_all(self._layers[layer], LAYER.format(layer=layer))

    def release(self, number: int) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the memory is another stream's
        for layer in self._ranges[number]:
            self._model.model.layers[layer] = _Passed()
            for name, parameter in list(self._layers[layer].named_parameters()):
                assign(self._layers[layer], name, parameter.to("meta"))

    def module(self, name: str) -> Any:
        return self._model.get_submodule(name)

    def reached(
        self,
        batch: Batch,
        states: Tensor,
        until: nn.Module | None,
        modules: Mapping[int, nn.Module] = MappingProxyType({}),
        visit: Visit = lambda place, x: None,
    ) -> Tensor:
        """The input of the module `until` of the held layer, from the hidden states before it; see `run`."""
        placed_states = placed(states, self._device)
        given = {"inputs_embeds": self.residual(placed_states), **positions(self._model, batch, self._device)}
        if self._inputs is not None:
            given["per_layer_inputs"] = self._inputs.of(ids(self._model, batch))
        if self._shared:
            given["shared_kv_states"] = self._seen = self._read(placed_states)
        return run(self._model, batch, given, modules, visit, until)

    def kept(self, states: Tensor, result: Tensor) -> Tensor:
        """Hidden states in host memory: `result` on the device replaces `states` in place, without fragmentation."""
        if self._shared:
            shared = (part.transpose(1, 2).flatten(2) for kind in self._shared for part in self._seen[kind])
            result = torch.cat([result, *shared], dim=-1)
        return states.copy_(result, non_blocking=True)

    def residual(self, states: Tensor) -> Tensor:
        """[.., H]: the hidden states without what is behind them."""
        return states[..., : self._hidden].contiguous() if self._carried else states

    def _read(self, states: Tensor) -> KVSharingDict:
        """The keys and values, [B, heads, T, width] each, that hidden states have for later layers, by type."""
        result, start = KVSharingDict(), self._hidden
        for kind, (heads, width) in self._shared.items():
            pair = states[..., start : (start := start + 2 * heads * width)].split(heads * width, dim=-1)
            result[kind] = tuple(part.contiguous().unflatten(-1, (heads, width)).transpose(1, 2) for part in pair)
        return result

    def passed(self, batch: Batch, states: Tensor) -> Tensor:
        """The hidden states after the held layer, in host memory, from those before it."""
        return self.kept(states, self.reached(batch, states, self.norm))

    def through(
        self, number: int, batch: Batch, states: Tensor, inputs: Sequence[Input], sums: Sequence[Sum]
    ) -> Tensor:
        """As `passed`; also adds the layer's inputs to `sums`. The last layer ends at its last input; `states` stay."""
        modules = {place: self._model.get_submodule(item.module) for place, item in enumerate(inputs) if item.module}
        is_last = number == len(self._ranges) - 1
        reads_head = len(modules) < len(inputs)
        until = self.norm if not is_last else None if reads_head else modules.get(len(modules) - 1, self.norm)

        def visit(place: int, x: Tensor) -> None:
            sums[place].add(x)

        result = self.reached(batch, states, until, modules, visit)
        if is_last and reads_head:
            sums[-1].add(counted_rows(self._model, result, batch))
        return states if is_last else self.kept(states, result)
