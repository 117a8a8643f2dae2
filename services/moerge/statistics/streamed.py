"""A pass in which one layer after another comes from its files, and all micro-batches of a window of shards pass it.

The hidden states of the window stay in host memory. So the device has two layers (the next one is read ahead),
activations of one micro-batch and the sums of one shard in one layer, whatever the model. Micro-batches and the order
of additions are those of a pass with the whole model in memory, and so are the integers.
"""

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from moerge.documents.shards import Shard
from moerge.errors import CheckpointError
from moerge.files import atomic_file
from moerge.models.batches import Batch, batches
from moerge.models.dense import assign, empty_model
from moerge.models.families import EMBEDDING, FINAL_NORM
from moerge.models.weights import Weights, own_copy
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.statistics.accumulate import ShardSums, Sum
from moerge.statistics.features import Visit, counted_rows, ids, placed, positions, run
from moerge.statistics.packed_attention import PACKED
from moerge.statistics.passes import Input, Pass, TrunkPass
from moerge.threads import one_thread
from moerge_proto.statistics_file import Int64


class LayerFiles:
    """The tensors of one layer after another, on a device; the next layer's are read meanwhile.

    There is memory for two layers, used in turns: freed and taken anew, it would leave gaps that nothing else fits.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        self._weights, self._dtype, self._device = weights, dtype, device
        self._memory: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        self._ahead = ThreadPoolExecutor(1)
        self._next: tuple[int, Future[dict[str, Tensor]]] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def layer(self, number: int) -> dict[str, Tensor]:
        """The tensors of a layer by name; those of the layer before are overwritten."""
        if self._next is None or self._next[0] != number:
            self._next = number, self._ahead.submit(self._read, number)
        found = self._next[1].result()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        last = self._weights.config.num_hidden_layers - 1
        self._next = (number + 1, self._ahead.submit(self._read, number + 1)) if number < last else None
        return found

    def _read(self, number: int) -> dict[str, Tensor]:
        memory = self._memory[number % 2]
        names = {name: name.removeprefix(f"model.layers.{number}.") for name in self._weights.layer(number)}
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            for name, own in names.items():
                shape = self._weights.shape(name)
                if own not in memory or memory[own].shape != shape:
                    memory[own] = torch.empty(shape, dtype=self._dtype, device=self._device)
                if self._stream is None:
                    self._weights.copy(name, memory[own])
                else:
                    pinned = torch.empty(shape, dtype=self._dtype, pin_memory=True)
                    self._weights.copy(name, pinned)
                    memory[own].copy_(pinned, non_blocking=True)
        return {name: memory[own] for name, own in names.items()}


class _Passed(nn.Module):
    """Stands for a layer without weights in memory."""

    def forward(self, hidden_states: Tensor, **kwargs: object) -> Tensor:
        return hidden_states


class Decoder:
    """A decoder that has one layer's weights at a time; for one thread, because hooks belong to a module.

    With `packs`, documents in bfloat16 on a GPU are read end to end.

    Attributes:
        norm: the final norm.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, device: torch.device, *, packs: bool = True) -> None:
        self._model, self._device, self._dtype = empty_model(weights.config, dtype), device, dtype
        if packs and device.type == "cuda" and dtype is torch.bfloat16:
            self._model.set_attn_implementation(PACKED)
        decoder: Any = self._model.model
        decoder.rotary_emb.to(device)
        assign(self._model, FINAL_NORM, own_copy(weights, FINAL_NORM, dtype).to(device))
        self._layers, self.norm = list(decoder.layers), decoder.norm
        decoder.layers = nn.ModuleList(_Passed() for _ in self._layers)

    def embedded(self, batch: Batch, embedding: Tensor) -> Tensor:
        """The first hidden states of a batch, in host memory; `embedding` is [V, H], as stored."""
        states = embedding[ids(self._model, batch)].to(self._dtype)
        return states.pin_memory() if self._device.type == "cuda" else states

    def hold(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Gives a layer its weights.

        Raises:
            CheckpointError: one is missing.
        """
        self._model.model.layers[number] = self._layers[number]
        for name, tensor in tensors.items():
            assign(self._model, name, tensor)
        missing = [name for name, parameter in self._layers[number].named_parameters() if parameter.is_meta]
        if missing:
            where = f"model.layers.{number}.{missing[0]}"
            raise CheckpointError("tensor not found", where=where, todo="save the model again with save_pretrained")

    def release(self, number: int) -> None:
        """Takes a layer's weights, after the computations with them."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the memory is another stream's
        self._model.model.layers[number] = _Passed()
        for name, parameter in list(self._layers[number].named_parameters()):
            assign(self._layers[number], name, parameter.to("meta"))

    def module(self, name: str) -> Any:
        """A module of the held layer, by its name in the model."""
        return self._model.get_submodule(name)

    def reached(
        self,
        batch: Batch,
        states: Tensor,
        until: nn.Module | None,
        modules: Mapping[int, nn.Module] = MappingProxyType({}),
        visit: Visit = lambda place, x: None,
    ) -> Tensor:
        """The input of a module of the held layer, on the device, from the hidden states before the layer.

        Arguments and result are those of `run`.
        """
        given = {"inputs_embeds": placed(states, self._device), **positions(self._model, batch, self._device)}
        return run(self._model, batch, given, modules, visit, until)

    def kept(self, states: Tensor, found: Tensor) -> Tensor:
        """Hidden states in host memory: those found on the device replace earlier ones in place, so no gaps arise."""
        return states.copy_(found, non_blocking=True)

    def passed(self, batch: Batch, states: Tensor) -> Tensor:
        """The hidden states behind the held layer, in host memory, from those before it."""
        return self.kept(states, self.reached(batch, states, self.norm))

    def through(
        self, number: int, batch: Batch, states: Tensor, inputs: Sequence[Input], sums: Sequence[Sum]
    ) -> Tensor:
        """The hidden states behind a layer, in host memory, from those before it; adds the layer's inputs to sums.

        Behind the last input of the last layer nothing is computed.
        """
        modules = {place: self._model.get_submodule(each.module) for place, each in enumerate(inputs) if each.module}
        is_last = number == len(self._layers) - 1
        reads_head = len(modules) < len(inputs)
        until = self.norm if not is_last else None if reads_head else modules[len(modules) - 1]
        found = self.reached(batch, states, until, modules, lambda place, x: sums[place].add(x))
        if is_last and reads_head:
            sums[-1].add(counted_rows(self._model, found, batch))
        return found if is_last else self.kept(states, found)


class Streamed:
    """A pass over windows of shards, layer by layer: `begin` a window, then call `sums` once per layer.

    Args:
        work: the pass.
        batch_tokens: of the shards' micro-batches.
        threads: shards at a time; they share the layers' weights.

    Attributes:
        layers: their number.
        layer: the next one.
    """

    def __init__(self, work: Pass, batch_tokens: int, threads: int = 1) -> None:
        self._device, dtype = torch.device(work.device), getattr(torch, work.precision)
        self._weights, self._inputs, self._batch_tokens = work.weights(), work.inputs(), batch_tokens
        self._counts = isinstance(work, TrunkPass)
        self._files = LayerFiles(self._weights, dtype, self._device)
        self._decoders = [Decoder(self._weights, dtype, self._device) for _ in range(threads)]
        self._threads = ThreadPoolExecutor(threads)
        self.layers, self.layer = len(self._inputs), 0

    def begin(self, shards: Sequence[Shard], states: Path | None = None) -> int:
        """Starts a window, from its saved hidden states if there are any; returns the next layer."""
        self._shards = {shard.name: shard for shard in shards}
        self._batches = {shard.name: list(batches(shard.rows, self._batch_tokens)) for shard in shards}
        self._states: dict[str, list[Tensor]] = {}
        if states is not None:
            self._restore(states)
            return self.layer
        self.layer, embedding, decoder = 0, self._weights.tensor(EMBEDDING), self._decoders[0]
        for name, own in self._batches.items():
            self._states[name] = [decoder.embedded(batch, embedding) for batch in own]
        return self.layer

    def pace(self, shard: Shard) -> float:
        """The seconds of a token through all layers, measured on the first one with the shard on each thread.

        Sums of one thread are rounded, too.
        """
        self.begin([shard])
        own, states = self._batches[shard.name], self._states[shard.name]

        @torch.inference_mode()
        def summed(decoder: Decoder) -> list[Sum]:
            sums = [Sum() for _ in self._inputs[0]]
            for batch, before in zip(own, states, strict=True):
                decoder.through(0, batch, before, self._inputs[0], sums)
            self._synchronise()
            return sums

        with one_thread():
            tensors = self._files.layer(0)
            for decoder in self._decoders:
                decoder.hold(0, tensors)
            for _ in range(2):  # the first time includes preparations
                begun = time.perf_counter()
                [sums, *_] = list(self._threads.map(summed, self._decoders))
                seconds = time.perf_counter() - begun
            for each, one in zip(self._inputs[0], sums, strict=True):
                one.gram(each.exponent, each.gains)
            for decoder in self._decoders:
                decoder.release(0)
        return seconds * self.layers / (shard.tokens * len(self._decoders))

    def sums(self, wanted: Collection[str]) -> ShardSums | None:
        """Computes the next layer; returns its sums over the wanted shards of the window, None without any."""
        number, self.layer = self.layer, self.layer + 1
        names = [name for name in self._batches if name in wanted or self.layer < self.layers]
        found: ShardSums | None = None
        with one_thread():
            tensors = self._files.layer(number)
            for decoder in self._decoders:
                decoder.hold(number, tensors)
            for each in self._computed(number, names, wanted):
                found = each if found is None else found + each
            for decoder in self._decoders:
                decoder.release(number)
        if self.layer == self.layers:
            self._states.clear()
        return found

    def _computed(self, number: int, names: Sequence[str], wanted: Collection[str]) -> Iterator[ShardSums]:
        """The sums of each wanted shard in a layer; at most one per thread is in memory."""
        free, running = deque(self._decoders), deque[tuple[Decoder, Future[ShardSums | None]]]()

        def ended() -> Iterator[ShardSums]:
            decoder, future = running.popleft()
            if (sums := future.result()) is not None:
                yield sums
            free.append(decoder)

        for name in names:
            if not free:
                yield from ended()
            decoder = free.popleft()
            running.append((decoder, self._threads.submit(self._shard, decoder, number, name, name in wanted)))
        while running:
            yield from ended()

    @torch.inference_mode()
    def _shard(self, decoder: Decoder, number: int, name: str, is_wanted: bool) -> ShardSums | None:
        """Takes a shard through a layer; its sums there, if they are wanted."""
        states, own = self._states[name], self._batches[name]
        inputs = self._inputs[number] if is_wanted else []
        sums = [Sum() for _ in inputs]
        for place, batch in enumerate(own):
            states[place] = decoder.through(number, batch, states[place], inputs, sums)
        self._synchronise()
        if not is_wanted:
            return None
        arrays: dict[str, Int64] = {}
        for each in inputs:
            one = sums.pop(0)  # so that not all sums are in memory twice
            cross = None if each.cross is None else one.cross(each.exponent, each.gains)
            arrays[each.gram] = one.gram(each.exponent, each.gains)
            if each.cross is not None and cross is not None:
                arrays[each.cross] = cross
        if self._counts and number == self.layers - 1:
            counted = torch.cat([batch.input_ids[batch.counted] for batch in own])
            arrays["token_counts"] = torch.bincount(counted, minlength=self._weights.config.vocab_size).numpy()
        shard = self._shards[name]
        return ShardSums(arrays, shard.tokens, shard.documents)

    def _synchronise(self) -> None:
        """Waits until the hidden states are in host memory."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def save(self, path: Path, work: str) -> None:
        """Writes the window's hidden states before the next layer; `work` names the pass and its settings."""
        plans = [
            TensorPlan(f"{name}.{place}", each.dtype, tuple(each.shape), partial(states.__getitem__, place))
            for name, states in self._states.items()
            for place, each in enumerate(states)
        ]
        with atomic_file(path) as out:
            write_safetensors(out, plans, metadata={"work": work, "layer": str(self.layer)})

    def _restore(self, path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            self.layer = int(file.metadata()["layer"])
            for name, own in self._batches.items():
                states = [file.get_tensor(f"{name}.{place}").clone() for place in range(len(own))]
                self._states[name] = [each.pin_memory() for each in states] if self._device.type == "cuda" else states


@dataclass(frozen=True)
class Saved:
    """A file of a window's hidden states.

    Attributes:
        path: of the file.
        shards: names of the window's shards.
        layer: the next one.
    """

    path: Path
    shards: frozenset[str]
    layer: int


def saved(path: Path, work: str) -> Saved | None:
    """The hidden states in a file; None if they are damaged, or of other work."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
            shards = frozenset(name.rpartition(".")[0] for name in file.keys())  # noqa: SIM118  # not iterable
    except (OSError, SafetensorError):
        return None
    return Saved(path, shards, int(facts["layer"])) if facts.get("work") == work else None
