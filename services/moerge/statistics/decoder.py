"""A decoder that reads its layers from files, one after another; two are in memory."""

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding as rows_of
from torch.nn.functional import pad
from transformers.cache_utils import KVSharingDict

from moerge.models.batches import Batch
from moerge.models.dense import assign, empty_model, require_all, rope_of
from moerge.models.families.common import LAYER
from moerge.models.families.family import layer_ranges, module_of
from moerge.models.families.registry import ends_of, family_of
from moerge.models.weights import Weights, own_copy
from moerge.statistics.accumulate import Sum
from moerge.statistics.features import Ready, Visit, counted_rows, ready, run
from moerge.statistics.hidden_states import HiddenStates
from moerge.statistics.layer_inputs import LayerInputs
from moerge.statistics.packed_attention import PACKED
from moerge.statistics.passes import Input
from moerge.statistics.transfers import Mark, transfers_of

_ALIGNED = 256  # elements


class LayerFiles:
    """The tensors of one layer after another, on a device; the next layer is read ahead.

    Two blocks, each as large as the largest layer, are used in turns: allocating again would fragment the device's
    memory, and layers may differ. For another device than a CPU, or with `staged`, two blocks of the largest tensor's
    size are in host memory, too.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, device: torch.device, *, staged: bool = False) -> None:
        self._weights, self._dtype, numbers = weights, dtype, range(len(layer_ranges(weights.config)))
        size = max(self._size(number) for number in numbers)
        with torch.inference_mode(mode=False):  # another thread fills it
            self._memory = [torch.empty(size, dtype=dtype, device=device) for _ in range(2)]
        self._ahead = ThreadPoolExecutor(1)
        self._next: tuple[int, Future[tuple[dict[str, Tensor], Mark]]] | None = None
        self._last, self._stages = numbers[-1], list[Tensor]()
        self._transfers = transfers_of(device)  # of its own, so that no other copy waits for a layer's
        self._loads: list[Mark] = []  # the last one from each stage
        if staged or device.type != "cpu":
            most = max(math.prod(weights.shape(name)) for number in numbers for name in weights.layer(number))
            self._stages = [self._transfers.host([most], dtype) for _ in range(2)]
            self._loads = [self._transfers.mark() for _ in range(2)]

    def layer(self, number: int) -> dict[str, Tensor]:
        """The tensors of a layer by name; overwrites those of the layer before, whose computations have begun."""
        if self._next is None or self._next[0] != number:
            self._next = number, self._read(number)
        result, loaded = self._next[1].result()
        self._next = (number + 1, self._read(number + 1)) if number < self._last else None
        self._transfers.follow(loaded)
        return result

    def _read(self, number: int) -> Future[tuple[dict[str, Tensor], Mark]]:
        return self._ahead.submit(self._loaded, number, self._transfers.mark())

    def _size(self, number: int) -> int:
        return sum(self._aligned(self._weights.shape(name)) for name in self._weights.layer(number))

    def _aligned(self, shape: Sequence[int]) -> int:
        """The elements of a tensor and of the space behind it, because products of unaligned memory may differ."""
        return -(-math.prod(shape) // _ALIGNED) * _ALIGNED

    def _loaded(self, number: int, free: Mark) -> tuple[dict[str, Tensor], Mark]:
        """The tensors of a layer, and the mark behind which they are there; their memory is free behind `free`."""
        memory, result = self._memory[number % 2], dict[str, Tensor]()
        for place, name in enumerate(self._weights.layer(number)):
            shape = self._weights.shape(name)
            result[name] = memory[: math.prod(shape)].view(shape)
            memory = memory[self._aligned(shape) :]
            if not self._stages:
                self._weights.copy(name, result[name])
                continue
            stage = self._stages[place % 2][: math.prod(shape)].view(shape)
            self._transfers.wait(self._loads[place % 2])
            self._weights.copy(name, stage)
            free = self._loads[place % 2] = self._transfers.load(result[name], stage, free)
        return result, free


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
        packs = packs and device.type != "cpu" and dtype is torch.bfloat16
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

    def ready(self, batch: Batch) -> Ready:
        """A micro-batch for `embed` and the functions below, of this decoder or another one of the same model."""
        return ready(self._model, batch, self._device)

    def embed(self, batches: Iterable[Ready], embedding: Tensor, states: HiddenStates) -> None:
        """Adds the first hidden states of batches; embedding [V, H], as stored."""
        for batch in batches:
            first = rows_of(batch.ids, embedding).to(self._dtype)
            first = first if self._factor == 1 else first * self._factor
            states.add(pad(first, (0, self._carried)) if self._carried else first)

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
        for layer in self._ranges[number]:
            self._model.model.layers[layer] = _Passed()
            for name, parameter in list(self._layers[layer].named_parameters()):
                assign(self._layers[layer], name, parameter.to("meta"))

    def module(self, name: str) -> Any:
        return self._model.get_submodule(name)

    def reached(
        self,
        batch: Ready,
        states: Tensor,
        until: nn.Module | None,
        modules: Mapping[int, nn.Module] = MappingProxyType({}),
        visit: Visit = lambda place, x: None,
    ) -> Tensor:
        """The input of the module `until` of the held layer, from the hidden states before it; see `run`."""
        given: dict[str, Any] = {"inputs_embeds": self.residual(states)}
        if self._inputs is not None:
            given["per_layer_inputs"] = self._inputs.of(batch.ids)
        if self._shared:
            given["shared_kv_states"] = self._seen = self._read(states)
        return run(self._model, batch, given, modules, visit, until)

    def _carrying(self, result: Tensor) -> Tensor:
        """The hidden states behind the held layer: its output, and behind it keys and values for later layers."""
        if not self._shared:
            return result
        shared = (part.transpose(1, 2).flatten(2) for kind in self._shared for part in self._seen[kind])
        return torch.cat([result, *shared], dim=-1)

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

    def passed(self, batch: Ready, states: Tensor) -> Tensor:
        """The hidden states behind the held layer, from those before it."""
        return self._carrying(self.reached(batch, states, self.norm))

    def through(
        self, number: int, batch: Ready, states: Tensor, inputs: Sequence[Input], sums: Sequence[Sum]
    ) -> Tensor | None:
        """As `passed`; also adds the layer's inputs to `sums`. The last layer ends at its last input: None."""
        modules = {place: self._model.get_submodule(item.module) for place, item in enumerate(inputs) if item.module}
        is_last = number == len(self._ranges) - 1
        reads_head = len(modules) < len(inputs)
        until = self.norm if not is_last else None if reads_head else modules.get(len(modules) - 1, self.norm)

        def visit(place: int, x: Tensor) -> None:
            sums[place].add(x)

        result = self.reached(batch, states, until, modules, visit)
        if is_last and reads_head:
            sums[-1].add(counted_rows(result, batch))
        return None if is_last else self._carrying(result)
