"""A pass that reads one layer after another from files, and runs all micro-batches of a window of shards through it.

Hidden states stay in host memory. The device has two layers, activations of one micro-batch and the sums of one shard
in one layer. The integers are those of a pass with the whole model in memory.
"""

import glob
import shutil
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moerge.documents.shards import Shard
from moerge.files import atomic_file, is_of_full_disk, unfinished
from moerge.models.batches import batches
from moerge.models.families.family import EMBEDDING
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.statistics.accumulate import ShardSums, Sum
from moerge.statistics.decoder import Decoder, LayerFiles
from moerge.statistics.passes import BodyPass, Input, Pass
from moerge.threads import one_thread
from moerge_proto.statistics_file import Int64


class Streamed:
    """A pass over windows of shards, layer by layer: `begin` a window, then call `sums` once per layer.

    `threads` are shards at a time, which share the layers' weights; `layer` is the next one.
    """

    def __init__(self, work: Pass, batch_tokens: int, threads: int = 1) -> None:
        self._device, dtype = torch.device(work.device), getattr(torch, work.precision)
        self._weights, self._inputs = work.weights(), work.inputs()
        self._batch_tokens = batch_tokens if work.sums is None else 1  # no document's features depend on others
        self._chunk = work.expert.family.chunk(work.expert.config)
        self._counts = isinstance(work, BodyPass)
        self._files = LayerFiles(self._weights, dtype, self._device)
        self._decoders = [Decoder(self._weights, dtype, self._device) for _ in range(threads)]
        self._threads = ThreadPoolExecutor(threads)
        self.layers, self.layer = len(self._inputs), 0

    def begin(self, shards: Sequence[Shard], states: Path | None = None) -> int:
        """Starts a window, from its saved hidden states if there are any; returns the next layer."""
        most, chunk = self._batch_tokens, self._chunk
        self._shards = {shard.name: shard for shard in shards}
        self._batches = {shard.name: list(batches(shard.rows, most, chunk)) for shard in shards}
        self._states: dict[str, list[Tensor]] = {}
        if states is not None:
            self._restore(states)
            return self.layer
        self.layer, embedding, decoder = 0, self._weights.tensor(EMBEDDING), self._decoders[0]
        for name, items in self._batches.items():
            self._states[name] = [decoder.embedded(batch, embedding) for batch in items]
        return self.layer

    def pace(self, shard: Shard) -> float:
        """Seconds per token through all layers, measured on the first one with the shard on each thread."""
        self.begin([shard])
        items, states = self._batches[shard.name], self._states[shard.name]

        @torch.inference_mode()
        def summed(decoder: Decoder) -> list[Sum]:
            sums = [item.sum() for item in self._inputs[0]]
            for batch, before in zip(items, states, strict=True):
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
            rounded(self._inputs[0], sums)
            for decoder in self._decoders:
                decoder.release(0)
        return seconds * self.layers / (shard.tokens * len(self._decoders))

    def sums(self, wanted: Collection[str]) -> ShardSums | None:
        """Computes the next layer; returns its sums over the wanted shards of the window, None without any."""
        number, self.layer = self.layer, self.layer + 1
        names = [name for name in self._batches if name in wanted or self.layer < self.layers]
        result: ShardSums | None = None
        with one_thread():
            tensors = self._files.layer(number)
            for decoder in self._decoders:
                decoder.hold(number, tensors)
            for item in self._computed(number, names, wanted):
                result = item if result is None else result + item
            for decoder in self._decoders:
                decoder.release(number)
        if self.layer == self.layers:
            self._states.clear()
        return result

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
        states, items = self._states[name], self._batches[name]
        inputs = self._inputs[number] if is_wanted else []
        sums = [item.sum() for item in inputs]
        for place, batch in enumerate(items):
            states[place] = decoder.through(number, batch, states[place], inputs, sums)
        self._synchronise()
        if not is_wanted:
            return None
        arrays = rounded(inputs, sums)
        if self._counts and number == 0:
            counted = torch.cat([batch.input_ids[batch.counted] for batch in items])
            counts = torch.bincount(counted, minlength=self._weights.config.vocab_size).numpy()
            arrays = {"token_counts": counts, **arrays}
        shard = self._shards[name]
        return ShardSums(arrays, shard.tokens, shard.documents)

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def save(self, path: Path, work: str) -> bool:
        """Writes the window's hidden states before the next layer; `work` names the pass and its settings.

        Returns False if the disk is too full; earlier states stay.
        """
        for left in unfinished(path.with_name(glob.escape(path.name))):
            left.unlink()
        plans = [
            TensorPlan(f"{name}.{place}", item.dtype, tuple(item.shape), partial(states.__getitem__, place))
            for name, states in self._states.items()
            for place, item in enumerate(states)
        ]
        if shutil.disk_usage(path.parent).free < sum(item.nbytes for state in self._states.values() for item in state):
            return False  # the rest is for sums
        try:
            with atomic_file(path, private=True) as out:
                write_safetensors(out, plans, metadata={"work": work, "layer": str(self.layer)})
        except OSError as error:
            if not is_of_full_disk(error):
                raise
            return False
        return True

    def _restore(self, path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            self.layer = int(file.metadata()["layer"])
            for name, batch in self._batches.items():
                states = [file.get_tensor(f"{name}.{place}").clone() for place in range(len(batch))]
                self._states[name] = [state.pin_memory() for state in states] if self._device.type == "cuda" else states


def rounded(inputs: Sequence[Input], sums: Sequence[Sum]) -> dict[str, Int64]:
    """The integers of each input's sums, by the names of their tensors; frees the sums."""
    arrays: dict[str, Int64] = {}
    for item, one in zip(inputs, sums, strict=True):
        arrays[item.gram] = one.gram(item.exponent, item.gains)
        if item.cross is not None:
            arrays[item.cross] = one.cross(item.exponent, item.gains)
    return arrays


@dataclass(frozen=True)
class Saved:
    """A file of a window's hidden states, with the names of its shards and the next layer."""

    path: Path
    shards: frozenset[str]
    layer: int


def saved(path: Path, work: str) -> Saved | None:
    """The facts of a file of hidden states; None if it is damaged or belongs to other work."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            shards = frozenset(name.rpartition(".")[0] for name in file.keys())  # noqa: SIM118  # not iterable
    except (OSError, SafetensorError):
        return None
    return Saved(path, shards, int(facts["layer"])) if facts.get("work") == work else None
