"""Bounds of the inputs of a model's linear modules, from its weights alone.

A norm's output divided by its gain has ||u||^2 <= H. The triangle inequality bounds a residual that grows only by such
outputs (OLMo 2), and the outputs of attention. The sums' exponents follow, so no text makes the sums overflow.
"""

import math

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.dense_files import Dense
from moerge.models.families.family import EMBEDDING, head_dim
from moerge.models.reader import Checkpoint
from moerge_proto.statistics_file import MAX_EXPERT_TOKENS, exponent

_ROWS = 4096


def feature_gains(body: Dense) -> Tensor:
    """[L, H] float32: the divisor of each layer's feature; ones without a norm."""
    if body.family.gain is None:
        return torch.ones(body.config.num_hidden_layers, body.config.hidden_size)
    names = [body.family.gain.format(layer=layer) for layer in range(body.config.num_hidden_layers)]
    return torch.stack([body.checkpoint.tensor(name).float() for name in names])


def feature_bounds(body: Dense) -> list[float]:
    """Per layer, the largest squared norm that a feature divided by its gain can have."""
    if body.family.gain is None:
        return [mlp**2 for _, mlp in _residuals(body)]
    return [float((gains != 0).sum()) for gains in feature_gains(body)]


def feature_exponents(body: Dense) -> list[int]:
    """Fractional bits of each layer's gram and cross."""
    hidden = body.config.hidden_size
    if body.family.gain is not None:
        return [exponent(hidden)] * body.config.num_hidden_layers
    return [exponent(hidden, bound) for bound in feature_bounds(body)]


def input_gain_names(model: Dense) -> list[str | None]:
    """The divisor of each gram of a body contribution, in the file's order: names of norms, or None."""
    gain = model.family.attention.gain
    per_layer = [(gain and gain.format(layer=layer), None) for layer in range(model.config.num_hidden_layers)]
    return [name for pair in per_layer for name in pair][1:]


def input_bounds(expert: Dense) -> list[float]:
    """Per gram of a body contribution, in the file's order, the largest squared norm of its vectors."""
    hidden, gain = float(expert.config.hidden_size), expert.family.attention.gain
    residuals = [] if gain else _residuals(expert)
    bounds = []
    for layer in range(expert.config.num_hidden_layers):
        read = _output_norm(expert.checkpoint, gain.format(layer=layer)) if gain else residuals[layer][0]
        bounds += [hidden if gain else read**2, _attended(expert, layer, read)]
    return bounds[1:]


def input_exponents(expert: Dense) -> list[int]:
    """Fractional bits of each gram of a body contribution, in the file's order."""
    config = expert.config
    sizes = [config.hidden_size, attention_size(config)] * config.num_hidden_layers
    sized = zip(sizes[1:], input_bounds(expert), strict=True)
    return [exponent(size, bound, MAX_EXPERT_TOKENS) for size, bound in sized]


def head_bounds(expert: Dense) -> list[float]:
    """The largest squared norm of the vectors of a head contribution."""
    return [float((expert.checkpoint.tensor(expert.family.final_norm) != 0).sum())]


def head_exponents(expert: Dense) -> list[int]:
    """Fractional bits of the gram of a head contribution."""
    hidden = expert.config.hidden_size
    return [exponent(hidden, hidden, MAX_EXPERT_TOKENS)]


def attention_size(config: PretrainedConfig) -> int:
    """Width A of the input of attention's output projection."""
    return int(config.num_attention_heads * head_dim(config))


def _attended(expert: Dense, layer: int, read: float) -> float:
    """Largest squared norm of the heads' outputs, means of values; `read` is that of the value projection's input."""
    config, weights, module = expert.config, expert.checkpoint, expert.family.attention.inputs[-1].format(layer=layer)
    rows = config.num_key_value_heads * head_dim(config)
    value = read * float(weights.tensor(f"{module}.weight")[-rows:].float().norm())
    if f"{module}.bias" in weights.specs:
        value += float(weights.tensor(f"{module}.bias")[-rows:].float().norm())
    return float(value**2 * config.num_attention_heads / config.num_key_value_heads)


def _residuals(model: Dense) -> list[tuple[float, float]]:
    """Per layer, the largest norms of the residual before its attention and before its MLP."""
    after_attention, after_mlp = model.family.added
    bound = max(float(rows.float().norm(dim=1).max()) for rows in model.checkpoint.tensor(EMBEDDING).split(_ROWS))
    bounds = []
    for layer in range(model.config.num_hidden_layers):
        read = bound
        bound += _output_norm(model.checkpoint, after_attention.format(layer=layer))
        bounds.append((read, bound))
        bound += _output_norm(model.checkpoint, after_mlp.format(layer=layer))
    return bounds


def _output_norm(model: Checkpoint, name: str) -> float:
    """The largest norm of an RMSNorm's output."""
    gains = model.tensor(name)
    return float(gains.abs().max()) * math.sqrt(len(gains))
