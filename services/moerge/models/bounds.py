"""Bounds of the inputs of a model's linear modules, from its weights alone.

A norm's output divided by its gain has ||u||^2 <= H. The triangle inequality bounds a residual that grows only by such
outputs (OLMo 2), and the outputs of attention. The sums' exponents follow, so no text makes the sums overflow.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.dense_files import Dense
from moerge.models.families.family import EMBEDDING, Family, mlp_layers
from moerge_proto.statistics_file import MAX_EXPERT_TOKENS, body_grams, exponent

_ROWS = 4096


def factors(model: Dense, name: str) -> Tensor:
    """[H]: the factors of the norm with that weight."""
    return model.family.factors(name, model.checkpoint.tensor(name))


def feature_gains(body: Dense) -> Tensor:
    """[L, H] float32: the divisor of each layer's feature; ones without a norm."""
    if body.family.gain is None:
        return torch.ones(len(mlp_layers(body.config)), body.config.hidden_size)
    names = [body.family.gain.format(layer=layer) for layer in mlp_layers(body.config)]
    return torch.stack([factors(body, name).float() for name in names])


def feature_bounds(body: Dense) -> list[float]:
    """Per layer, the largest squared norm that a feature divided by its gain can have."""
    if body.family.gain is None:
        return [mlp**2 for _, mlp in _residuals(body)]
    return [float((gains != 0).sum()) for gains in feature_gains(body)]


def feature_exponents(body: Dense) -> list[int]:
    """Fractional bits of each layer's gram and cross."""
    hidden = body.config.hidden_size
    if body.family.gain is not None:
        return [exponent(hidden)] * len(mlp_layers(body.config))
    return [exponent(hidden, bound) for bound in feature_bounds(body)]


@dataclass(frozen=True)
class InputGram:
    """A gram of a body contribution.

    Attributes:
        name: in the file, which has none of the first layer's inputs.
        modules: names of the modules that read its vectors.
        gain: name of the weight of the norm whose factors divide the vectors, or None.
    """

    name: str
    layer: int
    modules: tuple[str, ...]
    gain: str | None


def input_grams(model: Dense) -> list[InputGram]:
    """The grams of a body contribution, in the file's order, after that of the first layer's inputs."""
    grams = []
    for layer, attention in enumerate(model.family.attentions(model.config)):
        grams.append(InputGram(f"layers.{layer}.attention_input", layer, attention.inputs, attention.gain))
        if attention.output is not None:
            grams.append(InputGram(f"layers.{layer}.attention_output", layer, (attention.output,), None))
    return grams


def input_bounds(expert: Dense) -> list[float]:
    """Per gram of a body contribution, in the file's order, the largest squared norm of its vectors."""
    config, attentions = expert.config, expert.family.attentions(expert.config)
    residuals = [] if expert.family.attention.gain else _residuals(expert)
    bounds = list[float]()
    for layer, attention in enumerate(attentions):
        read = residuals[layer][0] if attention.gain is None else _output_norm(expert, attention.gain)
        bounds.append(read**2 if attention.gain is None else float(config.hidden_size))
        if attention.output is not None:
            bounds.append(attention.bound(attention.inputs, expert.checkpoint, config, read))
    return bounds[1:]


def input_exponents(expert: Dense) -> list[int]:
    """Fractional bits of each gram of a body contribution, in the file's order."""
    sizes = body_grams(expert.config.hidden_size, attention_sizes(expert.family, expert.config)).values()
    sized = zip(sizes, input_bounds(expert), strict=True)
    return [exponent(size, bound, MAX_EXPERT_TOKENS) for size, bound in sized]


def head_bounds(expert: Dense) -> list[float]:
    """The largest squared norm of the vectors of a head contribution."""
    return [float((factors(expert, expert.family.final_norm) != 0).sum())]


def head_exponents(expert: Dense) -> list[int]:
    """Fractional bits of the gram of a head contribution."""
    hidden = expert.config.hidden_size
    return [exponent(hidden, hidden, MAX_EXPERT_TOKENS)]


def attention_sizes(family: Family, config: PretrainedConfig) -> list[int]:
    """Per layer, the width of the input of attention's output projection; 0 if it has no gram."""
    return [0 if item.output is None else item.width(config) for item in family.attentions(config)]


def _residuals(model: Dense) -> list[tuple[float, float]]:
    """Per layer, the largest norms of the residual before its attention and before its MLP."""
    after_attention, after_mlp = model.family.added
    bound = max(float(rows.float().norm(dim=1).max()) for rows in model.checkpoint.tensor(EMBEDDING).split(_ROWS))
    bounds = []
    for layer in range(model.config.num_hidden_layers):
        read = bound
        bound += _output_norm(model, after_attention.format(layer=layer))
        bounds.append((read, bound))
        bound += _output_norm(model, after_mlp.format(layer=layer))
    return bounds


def _output_norm(model: Dense, name: str) -> float:
    """The largest norm of an RMSNorm's output."""
    gains = factors(model, name)
    return float(gains.abs().max()) * math.sqrt(len(gains))
