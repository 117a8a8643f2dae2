"""Nemotron-H, whose layers have one mixer each: a state space, attention, or an MLP without a gate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PretrainedConfig

from moerge.models.families.common import LAYER
from moerge.models.families.effects import unused
from moerge.models.families.family import EMBEDDING, Attention, Demand, Family, Piece, layer_ranges, mlp_layers
from moerge.models.families.hosts import NEMOTRON_H_MOE
from moerge.models.families.hybrid import normed

_MIXER, _NORM = LAYER + "mixer.", LAYER + "norm.weight"
_TYPES = "layers_block_type"


@dataclass(frozen=True)
class _Between(Demand):
    """A layer with attention or a state space before each MLP, of which a body contribution has grams."""

    def invalid(self, config: PretrainedConfig) -> object:
        pairs = zip(layer_ranges(config), mlp_layers(config), strict=True)
        return next((config.layer_types[mlp] for layers, mlp in pairs if layers.start == mlp), None)


def _inner(config: PretrainedConfig) -> int:
    return int(config.mamba_num_heads * config.mamba_head_dim)


def _scanned(config: PretrainedConfig) -> int:
    """The projection before and after the convolution; of each head its inputs, states and scores in a chunk."""
    heads, width, state = config.mamba_num_heads, config.mamba_head_dim, config.ssm_state_size
    projected = 2 * _inner(config) + 2 * config.n_groups * state
    return int(2 * projected + heads * (5 * width + 4 * state + 4 * config.chunk_size))


def _settings(config: PretrainedConfig) -> Mapping[str, object]:
    """The layers' types, also as engines read them."""
    return {
        _TYPES: ["moe" if kind == "mlp" else kind for kind in config.layer_types],
        "hybrid_override_pattern": config.hybrid_override_pattern.replace("-", "E"),
        "num_hidden_layers": config.num_hidden_layers,
    }


NEMOTRON_H = Family(
    model_type="nemotron_h",
    host=NEMOTRON_H_MOE,
    mlp={_MIXER + "up_proj.weight": ("up",), _MIXER + "down_proj.weight": ("down",)},
    gain=_NORM,
    attention=Attention(tuple(_MIXER + f"{name}_proj" for name in ("q", "k", "v")), _MIXER + "o_proj", gain=_NORM),
    mixers={
        "linear_attention": Attention(
            (_MIXER + "in_proj",),
            _MIXER + "out_proj",
            gain=_NORM,
            head=lambda config: math.gcd(config.mamba_head_dim, config.ssm_state_size),
            width=_inner,
            bound=normed,
            chunk=lambda config: int(config.chunk_size),
            numbers=_scanned,
            packs=False,
        )
    },
    epsilon="layer_norm_epsilon",
    final_norm=NEMOTRON_H_MOE.final_norm,
    copied=(
        *("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "attention_bias"),
        *("max_position_embeddings", "sliding_window", "mlp_hidden_act", "ssm_state_size", "mamba_num_heads"),
        *("mamba_head_dim", "mamba_hidden_act", "n_groups", "conv_kernel", "expand", "chunk_size", "use_conv_bias"),
        *("use_bias", "mamba_proj_bias", "mamba_ssm_cache_dtype", "time_step_min", "time_step_max", "time_step_floor"),
        *("layer_norm_epsilon", "residual_in_fp32", "rescale_prenorm_residual", "initializer_range"),
        *("attention_dropout", "hidden_dropout", "bos_token_id", "eos_token_id", "pad_token_id"),
    ),
    effects=unused(
        (
            *("attention_bias", "chunk_size", "expand", "hidden_dropout", "mamba_proj_bias", "mamba_ssm_cache_dtype"),
            *("rescale_prenorm_residual", "residual_in_fp32", "time_step_max", "time_step_floor"),
        )
    ),
    renamed={"moe_intermediate_size": "intermediate_size"},
    read=(_TYPES,),
    settings=_settings,
    pieces={EMBEDDING: (Piece("model.embeddings.weight", lambda embedding, config: embedding),)},
    demands=(
        Demand(_TYPES, ("linear_attention", "full_attention", "mlp"), "an expert must be dense"),
        _Between(_TYPES, ("full_attention", "linear_attention"), "a mixer must come before each MLP"),
        Demand("mlp_bias", (False,), "experts have no biases"),
    ),
)
