"""Residuals of all of a text's tokens in a dense model, of which one layer at a time is in memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moerge.models.batches import Batch
from moerge.models.families.family import EMBEDDING, Family, mlp_layers, module_of
from moerge.models.weights import Weights
from moerge.statistics.decoder import Decoder, LayerFiles
from moerge.statistics.hidden_states import HiddenStates
from moerge.statistics.transfers import transfers_of


class Residuals:
    """The residuals before the next layer, and the held layer of each thread.

    Args:
        room: bytes of residuals on the device, with one thread; None: all.

    Attributes:
        states: [B, T, H] float32 of each batch.
        held: by thread; their weights are shared.
        factor: of the MLPs' outputs when they are added to the residual.
    """

    def __init__(
        self,
        weights: Weights,
        family: Family,
        batches: Sequence[Batch],
        device: torch.device,
        threads: int,
        room: int | None,
    ) -> None:
        self.family = family
        self.factor, self.places = family.mlp_factor(weights.config), mlp_layers(weights.config)
        self._files = LayerFiles(weights, torch.float32, device)
        decoders = [Decoder(weights, torch.float32, device) for _ in range(threads)]
        self.held = [HeldLayer(self, decoder) for decoder in decoders]
        self.batches = [decoders[0].ready(batch) for batch in batches]
        self.states = HiddenStates(device, transfers_of(device), room)
        decoders[0].embed(self.batches, weights.tensor(EMBEDDING), self.states)

    @contextmanager
    def holding(self, number: int) -> Iterator[None]:
        """While open, a layer has its weights; the next one's are read meanwhile."""
        tensors = self._files.layer(number)
        for held in self.held:
            held.hold(number, tensors)
        try:
            yield
        finally:
            for held in self.held:
                held.decoder.release(number)


class HeldLayer:
    """The held layer of one thread, because hooks belong to a module.

    Functions take a batch's number. The family's MLPs have a norm before them.
    """

    mlp: Any
    _norm: Any

    def __init__(self, residuals: Residuals, decoder: Decoder) -> None:
        self._residuals, self.decoder, family = residuals, decoder, residuals.family
        self.last = family.mlp_output.removeprefix(f"{family.mlp_module}.")

    def hold(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        self.decoder.hold(number, tensors)
        family, place = self._residuals.family, self._residuals.places[number]
        self.mlp = self.decoder.module(family.mlp_module.format(layer=place))
        self._norm = self.decoder.module(module_of(f"{family.gain}").format(layer=place))

    def parameter(self, name: str) -> Tensor:
        module = module_of(name)
        parameter: Tensor = self.decoder.module(module).get_parameter(name.removeprefix(f"{module}."))
        return parameter

    def attended(self, number: int) -> Tensor:
        """A batch's residual behind the layer's attention."""
        residuals = self._residuals
        return self.decoder.reached(residuals.batches[number], residuals.states[number], self._norm)

    def features(self, attended: Tensor) -> Tensor:
        normed: Tensor = self._norm(attended)
        return normed

    def before_last(self, features: Tensor) -> Tensor:
        """The input of the MLP's last matrix, which isn't computed, from the MLP's."""
        matrix = getattr(self.mlp, self.last)
        setattr(self.mlp, self.last, nn.Identity())
        try:
            inputs: Tensor = self.mlp(features)
        finally:
            setattr(self.mlp, self.last, matrix)
        return inputs

    def after(self, states: Tensor, features: Tensor) -> Tensor:
        """The residual behind the layer's MLP, from the one before it and the MLP's input."""
        added: Tensor = states + self._residuals.factor * self.mlp(features)
        return added

    def pass_mlp(self, number: int) -> None:
        """From the residual before the layer's MLP to the one behind it."""
        residuals = self._residuals.states
        residuals[number] = self.after(before := residuals[number], self.features(before))

    def pass_layer(self, number: int) -> None:
        residuals, batch = self._residuals.states, self._residuals.batches[number]
        residuals[number] = self.decoder.passed(batch, residuals[number])
