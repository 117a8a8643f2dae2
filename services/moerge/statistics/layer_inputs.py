"""The inputs of layers beside the residual, which follow from a token: an embedding of each layer, and of the first."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from moerge.models.dense import assign
from moerge.models.families.family import EMBEDDING
from moerge.models.weights import Weights, own_copy
from moerge.statistics.features import placed

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # it takes 1.5 s, and a process without a model never needs it

_EMBEDDING = "model.embed_tokens_per_layer.weight"
_PROJECTION = "model.per_layer_model_projection.weight"
_NORM = "model.per_layer_projection_norm.weight"


class LayerInputs:
    """Gemma 4's inputs of the held layer. Both embeddings stay in their files; `width` is of an input."""

    def __init__(
        self, weights: Weights, model: "PreTrainedModel", width: int, factor: float, device: torch.device
    ) -> None:
        self._decoder: Any = model.model
        self._weights, self._width, self._factor, self._device = weights, width, factor, device
        self._dtype = model.dtype
        self._own_factor = float(torch.tensor(width**0.5).to(self._dtype))
        assign(model, _NORM, own_copy(weights, _NORM, self._dtype).to(device))
        self._first, self._own = weights.tensor(EMBEDDING), weights.tensor(_EMBEDDING)
        self._projection = weights.tensor(_PROJECTION)
        self._decoder.project_per_layer_inputs = lambda embedded, given: given  # `of` has made them

    def hold(self, number: int) -> None:
        self._rows = slice(number * self._width, (number + 1) * self._width)
        self._held = placed(self._projection[self._rows].to(self._dtype, copy=True), self._device)

    def of(self, ids: Tensor) -> Tensor:
        """[B, T, L, width] from ids [B, T]; every layer has the held one's, in the same memory."""
        first = placed(self._first[ids].to(self._dtype) * self._factor, self._device)
        own = placed(self._own[:, self._rows][ids].to(self._dtype) * self._own_factor, self._device)
        projected = linear(first, self._held) * self._decoder.per_layer_model_projection_scale
        normed = self._decoder.per_layer_projection_norm(projected)
        result: Tensor = (normed + own) * self._decoder.per_layer_input_scale
        return result[:, :, None].expand(-1, -1, len(self._decoder.layers), -1)
