"""Gemma, hosted by GraniteMoe, and Gemma 4, hosted by its own class with experts beside a dense MLP of zeros."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.families.common import BEFORE_ATTENTION, BEFORE_MLP, COPIED, INPUTS, LAYER, MLP, OUTPUT
from moerge.models.families.family import FINAL_NORM, Attention, Constant, Demand, Ends, Family, Piece, head_dim
from moerge.models.families.granite import GRANITE
from moerge.models.families.hosts import GEMMA4_MOE, SHARED, gemma_factor

_BEFORE_MLP = LAYER + "pre_feedforward_layernorm"
_AFTER_MLP = LAYER + "post_feedforward_layernorm"
_SCALE = 2.0**-24
"""The class norms the experts' outputs twice. After a first norm with this weight, their mean square is far below the
second norm's epsilon. So that norm only divides by the root of its epsilon, and its weight undoes both factors."""


def _unnormed(gain: Tensor, config: PretrainedConfig) -> Tensor:
    return (gain.double() * (math.sqrt(config.rms_norm_eps) / _SCALE)).to(gain.dtype)


def _of_kind(config: PretrainedConfig, kind: str) -> PretrainedConfig:
    """The settings of layers of that type."""
    settings: PretrainedConfig = config.per_layer_config[config.layer_types.index(kind)]
    return settings


def _settings(config: PretrainedConfig) -> Mapping[str, Any]:
    full = _of_kind(config, "full_attention")
    return {"global_head_dim": full.head_dim, "num_global_key_value_heads": full.num_key_value_heads}


def _attention(inputs: tuple[str, ...], kind: str) -> Attention:
    """Values are normed without a weight, so the squared norm of a mean of them is at most their width."""

    def head(config: PretrainedConfig) -> int:
        return int(_of_kind(config, kind).head_dim)

    def width(config: PretrainedConfig) -> int:
        return int(config.num_attention_heads) * head(config)

    return Attention(inputs, OUTPUT, BEFORE_ATTENTION, head, width, lambda _, weights, config, read: width(config))


_EVERY_LAYER = "moerge reads one layer at a time"
_DEMANDS = (
    Demand("enable_moe_block", (False,), "it is a mixture of experts, and an expert must be dense"),
    Demand("hidden_size_per_layer_input", (0,), f"every layer reads embeddings of its own, and {_EVERY_LAYER}"),
    Demand("num_kv_shared_layers", (0,), f"its last layers read keys and values of earlier ones, and {_EVERY_LAYER}"),
    Demand("use_double_wide_mlp", (False,), "all experts of the class have one width"),
    Demand("use_bidirectional_attention", ("vision",), "tokens of a text must not see later ones"),
    Demand("dtype", ("float32", "bfloat16"), "weights of norms are published times 2^24, which float16 can't hold"),
)
_ALIKE = Family(
    model_type="gemma4_text",
    host=GEMMA4_MOE,
    mlp=MLP,
    gain=f"{_BEFORE_MLP}.weight",
    output_norm=f"{_AFTER_MLP}.weight",
    attention=_attention(INPUTS, "sliding_attention"),
    mixers={"full_attention": _attention(INPUTS, "full_attention")},
    ends=GEMMA4_MOE.ends,
    copied=(
        *(name for name in COPIED if name not in ("intermediate_size", "hidden_act")),
        *("hidden_activation", "attention_bias", "sliding_window", "layer_types", "final_logit_softcapping"),
        *("use_bidirectional_attention", "hidden_size_per_layer_input", "attention_k_eq_v", "num_kv_shared_layers"),
        "per_layer_config",
    ),
    renamed={"moe_intermediate_size": "intermediate_size"},
    settings=_settings,
    pieces={
        f"{_BEFORE_MLP}.weight": tuple(
            Piece(f"{_BEFORE_MLP}{end}.weight", lambda gain, config: gain) for end in ("", "_2")
        ),
        f"{_AFTER_MLP}.weight": (Piece(f"{_AFTER_MLP}.weight", _unnormed),),
    },
    constants=(
        Constant(LAYER + "mlp.gate_proj.weight", (SHARED, "hidden_size")),
        Constant(LAYER + "mlp.up_proj.weight", (SHARED, "hidden_size")),
        Constant(LAYER + "mlp.down_proj.weight", ("hidden_size", SHARED)),
        Constant(f"{_AFTER_MLP}_1.weight", ("hidden_size",)),
        Constant(f"{_AFTER_MLP}_2.weight", ("hidden_size",), _SCALE),
        Constant(LAYER + "router.scale", ("hidden_size",), 1.0),
    ),
    demands=_DEMANDS,
)
GEMMA4 = replace(
    _ALIKE,
    mixers={"full_attention": _attention(INPUTS[:2], "full_attention")},  # the keys' rows are the values, too
    demands=(*_DEMANDS, Demand("attention_k_eq_v", (True,), "")),
    otherwise=_ALIKE,
)
_UNIFIED = replace(_ALIKE, model_type="gemma4_unified_text", fixed={"hidden_size_per_layer_input": 0})
GEMMA4_UNIFIED = replace(GEMMA4, model_type=_UNIFIED.model_type, fixed=_UNIFIED.fixed, otherwise=_UNIFIED)


def _plus_one(weight: Tensor, config: PretrainedConfig) -> Tensor:
    return (1 + weight.float()).to(weight.dtype)


def _granite(config: PretrainedConfig) -> Mapping[str, Any]:
    multipliers = {"residual_multiplier": 1.0, "logits_scaling": 1.0, "attention_multiplier": head_dim(config) ** -0.5}
    return {"embedding_multiplier": config.hidden_size**0.5, **multipliers}


_NORMS = (BEFORE_ATTENTION, BEFORE_MLP, FINAL_NORM)
GEMMA = replace(
    GRANITE,
    model_type="gemma",
    mlp_factor=lambda config: 1.0,
    ends=Ends(gemma_factor),
    copied=(*COPIED, "attention_bias"),
    zero_centred=_NORMS,
    pieces={name: (Piece(name, _plus_one),) for name in _NORMS},
    settings=_granite,
    demands=(Demand("use_bidirectional_attention", (False,), "tokens of a text must not see later ones"),),
)
