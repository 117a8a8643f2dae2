"""A pass that reads one layer after another from files, and runs all micro-batches of a window of shards through it.

Hidden states stay on the device while it has room, the others in host memory. Beside them the device has two layers,
and for each thread activations of one micro-batch and the sums of one shard in one layer. One thread has the sums of
two shards, because it computes one while the integers of the other leave and are added. The integers are those of a
pass with the whole model in memory.
"""

import glob
import shutil
import time
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moerge.documents.shards import Shard
from moerge.files import atomic_file, is_of_full_disk, unfinished
from moerge.models.batches import batches
from moerge.models.families.family import EMBEDDING
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.statistics.accumulate import Rounded, ShardSums, Sum
from moerge.statistics.decoder import Decoder, LayerFiles
from moerge.statistics.hidden_states import HiddenStates
from moerge.statistics.integers import require_fit
from moerge.statistics.passes import BodyPass, Input, Pass
from moerge.statistics.transfers import Transfers, transfers_of
from moerge.threads import one_thread
from moerge_proto.statistics_file import Int64


class Streamed:
    """A pass over windows of shards, layer by layer: `begin` a window, then call `sums` once per layer.

    Args:
        threads: shards at a time, which share the layers' weights.
        room: bytes of hidden states on the device, with one thread; None: all.

    Attributes:
        layer: the next one.
    """

    def __init__(self, work: Pass, batch_tokens: int, threads: int = 1, room: int | None = None) -> None:
        self._device, dtype = torch.device(work.device), getattr(torch, work.precision)
        self._weights, self._inputs, self._room = work.weights(), work.inputs(), room
        self._batch_tokens = batch_tokens if work.sums is None else 1  # no document's features depend on others
        self._chunk = work.expert.family.chunk(work.expert.config)
        self._counts = isinstance(work, BodyPass)
        self._transfers = transfers_of(self._device)
        self._files = LayerFiles(self._weights, dtype, self._device, staged=room is not None)
        self._decoders = [Decoder(self._weights, dtype, self._device) for _ in range(threads)]
        self._free = SimpleQueue[Decoder]()
        for decoder in self._decoders:
            self._free.put(decoder)
        self._threads = ThreadPoolExecutor(threads)
        self._one_thread = ExitStack()  # open while a shard is computed
        self._running: deque[_Running] = deque()
        self.layers, self.layer = len(self._inputs), 0
        self._held: int | None = None
        self._states = HiddenStates(self._device, self._transfers, room)

    def begin(self, shards: Sequence[Shard], states: Path | None = None) -> int:
        """Starts a window, from its saved hidden states if there are any; returns the next layer."""
        self.close()
        decoder, most, numbers = self._decoders[0], self._batch_tokens, count()
        self._shards = {shard.name: shard for shard in shards}
        self._batches = {
            shard.name: [(next(numbers), decoder.ready(item)) for item in batches(shard.rows, most, self._chunk)]
            for shard in shards
        }
        self.layer, self._states = 0, HiddenStates(self._device, self._transfers, self._room)
        if states is not None:
            self._restore(states)
        else:
            every = (batch for items in self._batches.values() for _, batch in items)
            decoder.embed(every, self._weights.tensor(EMBEDDING), self._states)
        return self.layer

    def pace(self, shard: Shard) -> float:
        """Seconds per token through all layers, measured on the first one with the shard on each thread."""
        self.begin([shard])
        items, states = self._batches[shard.name], self._states

        @torch.inference_mode()
        def summed(decoder: Decoder) -> list[Sum]:
            sums = [item.sum() for item in self._inputs[0]]
            for number, batch in items:
                decoder.through(0, batch, states[number], self._inputs[0], sums)
            self._transfers.wait(self._transfers.mark())
            return sums

        with one_thread():
            self._hold(0)
            for _ in range(2):  # the first time includes preparations
                begun = time.perf_counter()
                [sums, *_] = list(self._threads.map(summed, self._decoders))
                seconds = time.perf_counter() - begun
            Leaving(self._inputs[0], sums, self._transfers).arrays()
        return seconds * self.layers / (shard.tokens * len(self._decoders))

    def sums(self, wanted: Collection[str], ahead: Collection[str] | None = None) -> ShardSums | None:
        """Computes the next layer; returns its sums over the wanted shards of the window, None without any.

        With one thread, and the wanted shards of the layer behind it in `ahead`, that layer's first shard is begun; it
        is computed while the caller keeps the sums. Hidden states can't be saved then.
        """
        number, self.layer = self.layer, self.layer + 1
        names, result = self._names(number, wanted)[len(self._running) :], None  # without one that was begun ahead
        try:
            for name in names:
                if len(self._running) >= max(2, len(self._decoders)):
                    result = self._added(result)
                self._submit(number, name, is_wanted=name in wanted)
            if ahead is not None and self.layer < self.layers and len(self._decoders) == 1:
                for name in self._names(self.layer, ahead)[:1]:
                    self._submit(self.layer, name, is_wanted=name in ahead)
            while self._running and self._running[0].layer == number:
                result = self._added(result)
        except BaseException:
            self.close()
            raise
        if not self._running:
            self._one_thread.close()
        if self.layer == self.layers:
            self._states = HiddenStates(self._device, self._transfers, self._room)
        return result

    def close(self) -> None:
        """Waits for what was begun, and drops it."""
        for running in self._running:
            running.sums.exception()
        self._running.clear()
        self._one_thread.close()
        self._states.drop_copies()

    def _names(self, layer: int, wanted: Collection[str]) -> list[str]:
        """The shards that pass a layer."""
        return [name for name in self._batches if name in wanted or layer + 1 < self.layers]

    def _submit(self, layer: int, name: str, *, is_wanted: bool) -> None:
        if not self._running:
            self._one_thread.enter_context(one_thread())
        if len(self._decoders) > 1:
            self._hold(layer)  # no thread computes
        self._running.append(_Running(layer, name, self._threads.submit(self._shard, layer, name, is_wanted)))

    def _added(self, result: ShardSums | None) -> ShardSums | None:
        """The sums so far and those of the shard that was begun first, once they are there."""
        running = self._running.popleft()
        if (leaving := running.sums.result()) is None:
            return result
        shard, arrays = self._shards[running.name], leaving.arrays()
        if self._counts and running.layer == 0:
            counted = torch.cat([torch.tensor(row.ids)[torch.tensor(row.mask)] for row in shard.rows])
            counts = torch.bincount(counted, minlength=self._weights.config.vocab_size).numpy()
            arrays = {"token_counts": counts, **arrays}
        one = ShardSums(arrays, shard.tokens, shard.documents)
        return one if result is None else result + one

    def _hold(self, layer: int) -> None:
        """Gives a layer's weights to the decoders, unless they have them."""
        if self._held == layer:
            return
        if self._held is not None:
            for decoder in self._decoders:
                decoder.release(self._held)
            self._held = None
        tensors = self._files.layer(layer)
        for decoder in self._decoders:
            decoder.hold(layer, tensors)
        self._held = layer

    @torch.inference_mode()
    def _shard(self, layer: int, name: str, is_wanted: bool) -> "Leaving | None":
        self._hold(layer)
        inputs, items, decoder = self._inputs[layer] if is_wanted else [], self._batches[name], self._free.get()
        sums = [item.sum() for item in inputs]
        try:
            for number, batch in items:
                states = decoder.through(layer, batch, self._states[number], inputs, sums)
                if states is not None:
                    self._states[number] = states
        finally:
            self._free.put(decoder)
        return Leaving(inputs, sums, self._transfers) if is_wanted else None

    def save(self, path: Path, work: str) -> bool:
        """Writes the window's hidden states before the next layer; `work` names the pass and its settings.

        Returns False if the disk is too full; earlier states stay. Nothing may be computed ahead.
        """
        if self._running:
            raise ValueError("a shard has passed the next layer already")
        for left in unfinished(path.with_name(glob.escape(path.name))):
            left.unlink()
        plans = [
            TensorPlan(name, item.dtype, tuple(item.shape), partial(self._states.in_host, number))
            for number, (name, item) in enumerate(zip(self._saved_names(), self._states, strict=True))
        ]
        if shutil.disk_usage(path.parent).free < sum(item.nbytes for item in self._states):
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
            for name in self._saved_names():
                self._states.add(file.get_tensor(name).clone())

    def _saved_names(self) -> list[str]:
        """The name of each micro-batch in a file of hidden states."""
        return [f"{name}.{place}" for name, items in self._batches.items() for place in range(len(items))]


class Leaving:
    """The integers of a shard's sums in a layer, on their way to host memory."""

    def __init__(self, inputs: Sequence[Input], sums: Sequence[Sum], transfers: Transfers) -> None:
        self._inputs, self._transfers = inputs, transfers
        self._rounded = [one.rounded(item.exponent, item.gains) for item, one in zip(inputs, sums, strict=True)]
        self._last = transfers.mark()
        self._there = [Rounded(*map(self._sent, one)) for one in self._rounded]

    def arrays(self) -> dict[str, Int64]:
        """The integers by the names of their tensors, once they are there.

        Raises:
            ContributionError: a sum isn't finite, or too large.
        """
        self._transfers.wait(self._last)
        self._rounded.clear()
        arrays: dict[str, Int64] = {}
        for item, one in zip(self._inputs, self._there, strict=True):
            require_fit(one.fits, item.exponent)
            arrays[item.gram] = one.gram.numpy()
            if item.cross is not None:
                arrays[item.cross] = one.cross.numpy()
        return arrays

    def _sent(self, integers: Tensor) -> Tensor:
        if integers.is_cpu:
            return integers
        there = self._transfers.host(integers.shape, integers.dtype)
        self._last = self._transfers.store(there, integers, self._transfers.mark())
        return there


@dataclass(frozen=True)
class _Running:
    """A shard in a layer, which a thread computes."""

    layer: int
    name: str
    sums: Future[Leaving | None]


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
