"""Bounds of the inputs of a model's linear modules, from its weights alone.

A norm's output divided by its gain has ||u||^2 <= H. The triangle inequality bounds a residual that grows only by such
outputs (OLMo 2), and the outputs of attention. The exponents of the sums follow from these bounds, so no text can make
the sums overflow.
"""

import math

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.families import EMBEDDING, FINAL_NORM, Family, head_dim
from moerge.models.reader import Checkpoint
from moerge_proto.statistics_file import MAX_TRUNK_TOKENS, exponent

_ROWS = 4096


def feature_gains(trunk: Checkpoint, family: Family, config: PretrainedConfig) -> Tensor:
    """[L, H] float32: the divisor of each layer's feature; ones without a norm."""
    if family.gain is None:
        return torch.ones(config.num_hidden_layers, config.hidden_size)
    names = [family.gain.format(layer=layer) for layer in range(config.num_hidden_layers)]
    return torch.stack([trunk.tensor(name).float() for name in names])


def feature_bounds(trunk: Checkpoint, family: Family, config: PretrainedConfig) -> list[float]:
    """Per layer, the largest squared norm that a feature divided by its gain can have."""
    if family.gain is None:
        return [mlp**2 for _, mlp in _residuals(trunk, family, config)]
    return [float((gains != 0).sum()) for gains in feature_gains(trunk, family, config)]


def feature_exponents(trunk: Checkpoint, family: Family, config: PretrainedConfig) -> list[int]:
    """Fractional bits of each layer's gram and cross."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    if family.gain is not None:
        return [exponent(hidden)] * layers
    return [exponent(hidden, bound) for bound in feature_bounds(trunk, family, config)]


def input_gain_names(family: Family, config: PretrainedConfig) -> list[str | None]:
    """The divisor of each gram of a trunk contribution, in the file's order: names of norms, or None."""
    gain = family.attention.gain
    per_layer = [(gain and gain.format(layer=layer), None) for layer in range(config.num_hidden_layers)]
    return [*(name for pair in per_layer for name in pair), FINAL_NORM]


def input_bounds(expert: Checkpoint, family: Family, config: PretrainedConfig) -> list[float]:
    """Per gram of a trunk contribution, in the file's order, the largest squared norm of its vectors."""
    hidden, gain = float(config.hidden_size), family.attention.gain
    residuals = [] if gain else _residuals(expert, family, config)
    bounds = []
    for layer in range(config.num_hidden_layers):
        read = _output_norm(expert, gain.format(layer=layer)) if gain else residuals[layer][0]
        bounds += [hidden if gain else read**2, _attended(expert, family, config, layer, read)]
    return [*bounds, hidden]


def input_exponents(expert: Checkpoint, family: Family, config: PretrainedConfig) -> list[int]:
    """Fractional bits of each gram of a trunk contribution, in the file's order."""
    sizes = [*[config.hidden_size, attention_size(config)] * config.num_hidden_layers, config.hidden_size]
    bounds = input_bounds(expert, family, config)
    return [exponent(size, bound, MAX_TRUNK_TOKENS) for size, bound in zip(sizes, bounds, strict=True)]


def attention_size(config: PretrainedConfig) -> int:
    """Width A of the input of attention's output projection."""
    return int(config.num_attention_heads * head_dim(config))


def _attended(expert: Checkpoint, family: Family, config: PretrainedConfig, layer: int, read: float) -> float:
    """Squared norm of the heads' outputs: each is a mean of values, which heads may share.

    `read` is the largest norm of the value projection's input.
    """
    module = family.attention.inputs[-1].format(layer=layer)
    rows = config.num_key_value_heads * head_dim(config)
    value = read * float(expert.tensor(f"{module}.weight")[-rows:].float().norm())
    if f"{module}.bias" in expert.specs:
        value += float(expert.tensor(f"{module}.bias")[-rows:].float().norm())
    return float(value**2 * config.num_attention_heads / config.num_key_value_heads)


def _residuals(model: Checkpoint, family: Family, config: PretrainedConfig) -> list[tuple[float, float]]:
    """Per layer, the largest norms of the residual before its attention and before its MLP."""
    after_attention, after_mlp = family.added
    bound = max(float(rows.float().norm(dim=1).max()) for rows in model.tensor(EMBEDDING).split(_ROWS))
    bounds = []
    for layer in range(config.num_hidden_layers):
        read = bound
        bound += _output_norm(model, after_attention.format(layer=layer))
        bounds.append((read, bound))
        bound += _output_norm(model, after_mlp.format(layer=layer))
    return bounds


def _output_norm(model: Checkpoint, name: str) -> float:
    """The largest norm of an RMSNorm's output."""
    gains = model.tensor(name)
    return float(gains.abs().max()) * math.sqrt(len(gains))
