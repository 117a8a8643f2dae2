"""Scores of text by a model of which one layer at a time is in memory, whatever its size.

All micro-batches of a window of text pass each layer; their hidden states stay on the device, or in host memory.
Weights are read once per window. The sums are those of the whole model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PretrainedConfig

from moerge.memory.machine import free_for
from moerge.memory.needs import Need, scoring
from moerge.memory.room import room_on_device, states_for
from moerge.memory.shapes import position_numbers
from moerge.models.batches import Batch, pad
from moerge.models.families.family import EMBEDDING, mlp_layers
from moerge.models.families.registry import ends_of, host_of
from moerge.models.published import PublishedWeights
from moerge.models.weights import Weights, head_name, own_copy
from moerge.progress import Tracker
from moerge.scoring.perplexity import BATCH_TOKENS, Score, Window, batched, by_document, losses_of, total
from moerge.scoring.routers import RouterHook, RouterOutput, first_choices
from moerge.statistics.decoder import Decoder, LayerFiles
from moerge.statistics.features import Ready, counted_rows, placed
from moerge.statistics.hidden_states import HiddenStates
from moerge.statistics.transfers import transfers_of
from moerge.statistics.windows import Layered

T = TypeVar("T")
Routed = Callable[[int, T, Tensor, Tensor], object]
"""Called with a layer, the name of a micro-batch, and weights and experts [n, k] of its n tokens that count."""
_Part = tuple[int, Sequence[Window]]


class StreamedModel:
    """A dense model or a published version.

    Args:
        states: bytes of a window's hidden states; one micro-batch is always taken.
        room: bytes of them on the device, the others are in host memory; None: all.
        hook: of a version's routers, after which experts are counted; None: the routers choose.

    Attributes:
        routed: [L, D] int64, of a version: first-choice experts at the positions that predict scored tokens so far.
    """

    def __init__(
        self,
        weights: Weights,
        dtype: torch.dtype,
        device: str,
        states: int,
        room: int | None = None,
        hook: RouterHook | None = None,
    ) -> None:
        self._weights, self._dtype, self._device = weights, dtype, torch.device(device)
        self._states, self._room, self._hook = states, room, hook
        self._transfers = transfers_of(self._device)
        self._decoder = Decoder(weights, dtype, self._device, packs=False)
        self._places, self._router, experts = mlp_layers(weights.config), "", 0
        self._layers = len(self._places)
        if isinstance(weights, PublishedWeights):
            host = host_of(weights.config)
            self._router, experts = host.router_module, host.slots(weights.config)
        self.routed = torch.zeros(self._layers, experts, dtype=torch.int64)

    def score(self, cut: Sequence[Window], tracker: Tracker) -> Score:
        """The score of windows, of which there is at least one; the tracker gets the number of scored tokens."""
        return total(self.scores([cut], tracker))

    def scores(self, blocks: Iterable[Sequence[Window]], tracker: Tracker) -> Iterator[Score]:
        """The score of each block of windows, in order; blocks have micro-batches of their own.

        The layers' memory is free at the end.
        """
        layered, files = Layered(tracker, self._layers), LayerFiles(self._weights, self._dtype, self._device)
        parts = ((number, batch) for number, block in enumerate(blocks) for batch in batched(block))
        made = ((part, _batch(part[1])) for part in parts)
        result = (loss for window in self._windows(made) for loss in self._losses(window, files, layered))
        for _, group in groupby(result, key=itemgetter(0)):
            yield total(by_document((batch, losses) for _, batch, losses in group))

    @torch.inference_mode()
    def route(self, named: Iterable[tuple[T, Batch]], see: Routed[T], tracker: Tracker) -> None:
        """The choices of a version's routers, without scores; the tracker gets the number of tokens that count."""
        layered, files = Layered(tracker, self._layers), LayerFiles(self._weights, self._dtype, self._device)
        for window in self._windows(named):
            batches = [self._decoder.ready(batch) for _, batch in window]
            self._through_layers(batches, files, _telling(window, batches, see, layered)).drop_copies()

    def _windows(self, parts: Iterable[tuple[T, Batch]]) -> Iterator[list[tuple[T, Batch]]]:
        window, held = list[tuple[T, Batch]](), 0
        token = self._dtype.itemsize * position_numbers(self._weights.config)
        for name, batch in parts:
            more = token * batch.input_ids.numel()
            if window and held + more > self._states:
                yield window
                window, held = [], 0
            window.append((name, batch))
            held += more
        if window:
            yield window

    @torch.inference_mode()
    def _losses(
        self, window: Sequence[tuple[_Part, Batch]], files: LayerFiles, layered: Layered
    ) -> Iterator[tuple[int, Sequence[Window], Tensor]]:
        """The losses of each micro-batch, [B, T - 1] float32."""
        batches = [self._decoder.ready(batch) for _, batch in window]
        scored = [sum(item.scored for item in cut) for (_, cut), _ in window]
        routed = self.routed.new_zeros(self.routed.shape, device=self._device)

        def count(layer: int, place: int, output: RouterOutput | None) -> None:
            if output is not None:
                routed[layer] += first_choices(counted_rows(output[2], batches[place]), self.routed.shape[1])
            layered.advance(scored[place])

        states = self._through_layers(batches, files, count)
        self.routed += routed.cpu()
        head = own_copy(self._weights, head_name(self._weights), self._dtype).to(self._device)
        losses = [self._through_head(head, states[place], batch) for place, batch in enumerate(batches)]
        states.drop_copies()
        for ((number, cut), _), result in zip(window, losses, strict=True):
            yield number, cut, result

    def _through_layers(
        self, batches: Sequence[Ready], files: LayerFiles, after: Callable[[int, int, RouterOutput | None], object]
    ) -> HiddenStates:
        """The last hidden states of micro-batches; after(layer, place of a micro-batch, its router's output)."""
        states, embedding = HiddenStates(self._device, self._transfers, self._room), self._weights.tensor(EMBEDDING)
        self._decoder.embed(batches, embedding, states)
        for layer in range(self._layers):
            with self._held(files, layer) as outputs:
                for place, batch in enumerate(batches):
                    states[place] = self._decoder.passed(batch, states[place])
                    after(layer, place, outputs.pop() if outputs else None)
        return states

    def _through_head(self, head: Tensor, last: Tensor, batch: Ready) -> Tensor:
        """The losses of a micro-batch from its last hidden states; its logits are freed on return."""
        outputs, config = linear(self._decoder.norm(self._decoder.residual(last)), head), self._weights.config
        return losses_of(ends_of(config).logits(outputs, config).float(), placed(batch.ids, self._device))

    @contextmanager
    def _held(self, files: LayerFiles, layer: int) -> Iterator[list[RouterOutput]]:
        """While open, a layer has its weights; its router's outputs are added to the list."""
        outputs, handles = list[RouterOutput](), []

        def see(module: nn.Module, inputs: object, output: RouterOutput) -> None:
            outputs.append(output)

        self._decoder.hold(layer, files.layer(layer))
        if self._router:
            router = self._decoder.module(self._router.format(layer=self._places[layer]))
            if self._hook is not None:
                handles.append(router.register_forward_hook(self._hook))
            handles.append(router.register_forward_hook(see))
        try:
            yield outputs
        finally:
            for handle in handles:
                handle.remove()
            self._decoder.release(layer)


def _telling(
    window: Sequence[tuple[T, Batch]], batches: Sequence[Ready], see: Routed[T], layered: Layered
) -> Callable[[int, int, RouterOutput | None], None]:
    tokens = [int(batch.counted.sum()) for _, batch in window]

    def tell(layer: int, place: int, output: RouterOutput | None) -> None:
        if output is not None:
            weights, chosen = (counted_rows(part, batches[place]) for part in output[1:])
            see(layer, window[place][0], weights, chosen)
        layered.advance(tokens[place])

    return tell


def _batch(cut: Sequence[Window]) -> Batch:
    """A micro-batch; the counted places are those that predict scored tokens."""
    lengths = torch.tensor([len(window.tokens) for window in cut])
    ids = pad([window.tokens.ids for window in cut])
    return Batch(ids, lengths, pad([window.predicts for window in cut], torch.bool))


def need_of(config: PretrainedConfig, precision: str, context: int, device: str) -> Need:
    """The memory of a `StreamedModel` with windows of `context`."""
    return scoring(config, getattr(torch, precision), max(BATCH_TOKENS, context), context, device)


def streamed_model(
    weights: Weights,
    precision: str,
    device: str,
    context: int,
    host_memory: int | None = None,
    hook: RouterHook | None = None,
) -> StreamedModel:
    """The model, with the hidden states that this machine has room for; for other arguments see `StreamedModel`."""
    need = need_of(weights.config, precision, context, device)
    states = states_for(need, free_for(device), host_memory)
    return StreamedModel(weights, getattr(torch, precision), device, states, room_on_device(need), hook)
