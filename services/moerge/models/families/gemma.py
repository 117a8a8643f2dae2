"""Gemma, hosted by GraniteMoe, and Gemma 3 and 4, hosted by Gemma 4 with experts beside a dense MLP of zeros."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.families.common import BEFORE_ATTENTION, BEFORE_MLP, COPIED, INPUTS, LAYER, MLP, OUTPUT
from moerge.models.families.effects import unused
from moerge.models.families.family import (
    FINAL_NORM,
    UNUSED,
    Attention,
    Constant,
    Demand,
    Ends,
    Family,
    Piece,
    head_dim,
)
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


def _types(config: PretrainedConfig) -> list[str]:
    """The layers' types; of a layer that reads an earlier one's keys and values, with a mark."""
    shared = getattr(config, "num_kv_shared_layers", 0)
    own = config.num_hidden_layers - shared
    return [kind if layer < own else kind + _SHARED for layer, kind in enumerate(config.layer_types)]


def _unread(config: PretrainedConfig) -> list[str]:
    """The projections and norms of keys and values in layers that read an earlier one's."""
    names = [LAYER + f"self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm", "v_norm")]
    layers = [layer for layer, kind in enumerate(_types(config)) if kind.endswith(_SHARED)]
    return [name.format(layer=layer) for layer in layers for name in names]


def _widths(config: PretrainedConfig) -> Mapping[str, Any]:
    """Experts have one width, so narrow ones are padded with zeros to that of layers with shared keys and values."""
    is_double = getattr(config, "use_double_wide_mlp", False) and config.num_kv_shared_layers
    return {**_settings(config), "moe_intermediate_size": config.intermediate_size * (2 if is_double else 1)}


def _attention(inputs: tuple[str, ...], kind: str) -> Attention:
    """Values are normed without a weight, so the squared norm of a mean of them is at most their width."""

    def head(config: PretrainedConfig) -> int:
        return int(_of_kind(config, kind).head_dim)

    def width(config: PretrainedConfig) -> int:
        return int(config.num_attention_heads) * head(config)

    return Attention(inputs, OUTPUT, BEFORE_ATTENTION, head, width, lambda _, weights, config, read: width(config))


_SHARED = ", shared"
_KINDS = ("full_attention", "sliding_attention")
_DEMANDS = (
    Demand("enable_moe_block", (False,), "it is a mixture of experts, and an expert must be dense"),
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
    mixers={
        "full_attention": _attention(INPUTS, "full_attention"),
        **{kind + _SHARED: _attention(INPUTS[:1], kind) for kind in _KINDS},
    },
    types=_types,
    ends=GEMMA4_MOE.ends,
    copied=(
        *(name for name in COPIED if name not in ("intermediate_size", "hidden_act")),
        *("hidden_activation", "attention_bias", "sliding_window", "layer_types", "final_logit_softcapping"),
        *("use_bidirectional_attention", "attention_k_eq_v", "num_kv_shared_layers", "per_layer_config"),
        *("hidden_size_per_layer_input", "vocab_size_per_layer_input"),
    ),
    read=("intermediate_size", "use_double_wide_mlp"),
    effects={
        "use_double_wide_mlp": lambda config: config.use_double_wide_mlp if config.num_kv_shared_layers else UNUSED,
        "vocab_size_per_layer_input": lambda config: (
            config.vocab_size_per_layer_input if config.hidden_size_per_layer_input else UNUSED
        ),
    },
    settings=_widths,
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
    unread=_unread,
    demands=_DEMANDS,
)
GEMMA4 = replace(
    _ALIKE,
    mixers={
        **_ALIKE.mixers,
        "full_attention": _attention(INPUTS[:2], "full_attention"),  # the keys' rows are the values, too
    },
    demands=(*_DEMANDS, Demand("attention_k_eq_v", (True,), "")),
    otherwise=_ALIKE,
)
_UNIFIED = replace(
    _ALIKE,
    model_type="gemma4_unified_text",
    fixed={"hidden_size_per_layer_input": 0},
    effects=unused(("hidden_size_per_layer_input", "vocab_size_per_layer_input", "use_double_wide_mlp")),
)
GEMMA4_UNIFIED = replace(
    GEMMA4, model_type=_UNIFIED.model_type, fixed=_UNIFIED.fixed, effects=_UNIFIED.effects, otherwise=_UNIFIED
)


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

LINEAR_VALUES = "linear_value_norms"
"""A published config field: norms of values only multiply by a constant."""
_VALUES, _HEADS = 2.0**-30, 2.0**20
"""Gemma 4 norms values, without a weight. Of values times the first number their mean square is far below the norm's
epsilon, so it only divides by its root. The second number, of the output projection, undoes both factors but 0.98,
which the norm after attention removes."""


def _scaled(factor: float) -> Callable[[Tensor, PretrainedConfig], Tensor]:
    return lambda weight, config: weight * factor


def _query_gain(weight: Tensor, config: PretrainedConfig) -> Tensor:
    """Gemma 4 doesn't divide the scores of attention."""
    factors = (1 + weight.double()) / math.sqrt(config.query_pre_attn_scalar)
    return factors.to(weight.dtype)


def _after_mlp(weight: Tensor, config: PretrainedConfig) -> Tensor:
    return _unnormed(1 + weight.double(), config).to(weight.dtype)


_HEAD_NORMS = tuple(LAYER + f"self_attn.{name}_norm.weight" for name in ("q", "k"))
_AFTER_ATTENTION = LAYER + "post_attention_layernorm.weight"
_MADE: Mapping[str, tuple[Piece, ...]] = {
    **{name: (Piece(name, _plus_one),) for name in (BEFORE_ATTENTION, _AFTER_ATTENTION, _HEAD_NORMS[1], FINAL_NORM)},
    f"{_BEFORE_MLP}.weight": tuple(Piece(f"{_BEFORE_MLP}{end}.weight", _plus_one) for end in ("", "_2")),
    f"{_AFTER_MLP}.weight": (Piece(f"{_AFTER_MLP}.weight", _after_mlp),),
    _HEAD_NORMS[0]: (Piece(_HEAD_NORMS[0], _query_gain),),
    f"{INPUTS[2]}.weight": (Piece(f"{INPUTS[2]}.weight", _scaled(_VALUES)),),
    f"{OUTPUT}.weight": (Piece(f"{OUTPUT}.weight", _scaled(_HEADS)),),
}
GEMMA3 = replace(
    _ALIKE,
    model_type="gemma3_text",
    attention=Attention(INPUTS, OUTPUT, BEFORE_ATTENTION),
    mixers={},
    zero_centred=tuple(_MADE.keys() - {f"{INPUTS[2]}.weight", f"{OUTPUT}.weight"}),
    copied=(
        *(name for name in COPIED if name not in ("intermediate_size", "hidden_act")),
        *("hidden_activation", "sliding_window", "layer_types", "final_logit_softcapping"),
    ),
    read=("intermediate_size", "query_pre_attn_scalar"),
    fixed={"hidden_size_per_layer_input": 0, "use_bidirectional_attention": None, LINEAR_VALUES: True},
    settings=lambda config: {"global_head_dim": config.head_dim, "moe_intermediate_size": config.intermediate_size},
    pieces=_MADE,
    constants=(*_ALIKE.constants, Constant(LAYER + "layer_scalar", (1,), 1.0)),
    demands=(
        Demand("attention_bias", (False,), "biases of values would be scaled"),
        Demand("attn_logit_softcapping", (), "Gemma 4 doesn't cap scores of attention"),
        Demand("use_bidirectional_attention", (False,), "tokens of a text must not see later ones"),
        Demand("layer_types.-1", ("full_attention",), "Gemma 4 has no window in its last layer"),
        _DEMANDS[-1],
    ),
)
