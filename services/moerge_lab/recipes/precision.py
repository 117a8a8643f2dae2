"""The number formats of recipes' models."""

import importlib.util
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.families import FAMILIES
from moerge.scoring.routers import routers

Dtype = Literal["float32", "bfloat16", "Q8_0", "Q4_0"]
"""bfloat16: of parameters and computation. Q8_0, Q4_0: weights rounded as in GGUF files, computation in float32."""
BLOCK = 32
"""Weights of a row with a common scale."""


def require(dtype: Dtype) -> None:
    """Requires the package for rounding.

    Raises:
        MoergeError: it isn't installed.
    """
    if dtype.startswith("Q") and importlib.util.find_spec("gguf") is None:
        raise MoergeError("gguf isn't installed", where=f"`precision` {dtype}", todo="pip install gguf")


def convert(model: PreTrainedModel, dtype: Dtype) -> PreTrainedModel:
    """The model with its parameters in a format, changed in place.

    Q8_0 and Q4_0 round each matrix whose width is a multiple of the block, as llama.cpp does: routers stay in float32,
    and with Q4_0 the head, also if it is the embedding, is rounded to Q8_0.
    """
    if dtype == "float32":
        return model
    published = any(family.published_type == model.config.model_type for family in FAMILIES.values())
    kept = {id(router.get_parameter("weight")) for router in routers(model)} if published else set()
    head = id(model.get_output_embeddings().get_parameter("weight"))
    for parameter in model.parameters():
        if dtype == "bfloat16":
            parameter.data = parameter.data.bfloat16()
        elif parameter.dim() > 1 and parameter.shape[-1] % BLOCK == 0 and id(parameter) not in kept:
            parameter.data = rounded(parameter.data, "Q8_0" if id(parameter) == head else dtype)
    return model


def rounded(weights: Tensor, dtype: Dtype) -> Tensor:
    """Weights [..., H] float32, rounded as in GGUF."""
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType[dtype]
    stored = quants.quantize(weights.cpu().numpy().reshape(-1, weights.shape[-1]), kind)
    return torch.from_numpy(quants.dequantize(stored, kind)).reshape(weights.shape).to(weights.device)
