"""Residuals of all of a text's tokens in a dense model, of which one layer at a time is in memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from moerge.models.batches import Batch
from moerge.models.families.family import EMBEDDING, Family, mlp_layers, module_of
from moerge.models.weights import Weights
from moerge.statistics.decoder import Decoder, LayerFiles
from moerge.statistics.features import placed


class Residuals:
    """The residuals before the next layer, in host memory, and the MLP of the held layer.

    Functions take a batch's number. The family's MLPs have a norm before them.

    Attributes:
        states: [B, T, H] float32 of each batch.
        factor: of the MLPs' outputs when they are added to the residual.
    """

    mlp: Any
    _norm: Any

    def __init__(self, weights: Weights, family: Family, batches: Sequence[Batch], device: torch.device) -> None:
        self._family, self._batches, self._device = family, batches, device
        self._files = LayerFiles(weights, torch.float32, device)
        self._decoder = Decoder(weights, torch.float32, device)
        self.factor, self._places = family.mlp_factor(weights.config), mlp_layers(weights.config)
        embedding = weights.tensor(EMBEDDING)
        self.states = [self._decoder.embedded(batch, embedding) for batch in batches]

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """While open, a layer has its weights; the next one's are read meanwhile."""
        self._decoder.hold(number, self._files.layer(number))
        place = self._places[number]
        self.mlp = self._decoder.module(self._family.mlp_module.format(layer=place))
        self._norm = self._decoder.module(module_of(f"{self._family.gain}").format(layer=place))
        try:
            yield
        finally:
            self._decoder.release(number)

    def parameter(self, name: str) -> Tensor:
        module = module_of(name)
        parameter: Tensor = self._decoder.module(module).get_parameter(name.removeprefix(f"{module}."))
        return parameter

    def attended(self, number: int) -> Tensor:
        """A batch's residual behind the held layer's attention, on the device."""
        return self._decoder.reached(self._batches[number], self.states[number], self._norm)

    def features(self, attended: Tensor) -> Tensor:
        normed: Tensor = self._norm(attended)
        return normed

    def after(self, states: Tensor, features: Tensor) -> Tensor:
        """The residual behind the held layer's MLP, from the one before it and the MLP's input."""
        added: Tensor = states + self.factor * self.mlp(features)
        return added

    def keep(self, number: int, states: Tensor) -> None:
        self.states[number] = self._decoder.kept(self.states[number], states)

    def pass_layer(self) -> None:
        for number, batch in enumerate(self._batches):
            self.states[number] = self._decoder.passed(batch, self.states[number])

    def placed(self, number: int) -> Tensor:
        states: Tensor = placed(self.states[number], self._device)
        return states
