"""Qwen3.5, LFM2 and Granite 4, of which most layers have linear attention or a convolution instead of attention."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from transformers import PretrainedConfig

from moerge.models.families.common import BEFORE_ATTENTION, BEFORE_MLP, COPIED, LAYER
from moerge.models.families.effects import partial_rope, rope, unused
from moerge.models.families.family import FINAL_NORM, UNUSED, Attention, Demand, Family, Matrix, Tensors, module_of
from moerge.models.families.granite import GRANITE
from moerge.models.families.hosts import GRANITE_MOE_HYBRID, LFM2_MOE, QWEN3_5_MOE
from moerge.models.families.qwen import QWEN2

_CHUNK = 64  # of transformers' gated delta rule
_DELTA = LAYER + "linear_attn."
_SIZES = tuple(f"linear_{name}" for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))


def _head(config: PretrainedConfig) -> int:
    """Rows that divide the heads of queries and keys, and those of values."""
    return math.gcd(config.linear_key_head_dim, config.linear_value_head_dim)


def _values(config: PretrainedConfig) -> int:
    return int(config.linear_num_value_heads * config.linear_value_head_dim)


def _gated(inputs: Sequence[str], weights: Tensors, config: PretrainedConfig, read: float) -> float:
    """The bound of a norm's outputs n per head times silu(z): |silu(z)| <= |z|, and ||n||^2 <= the head's width."""
    gate, width = inputs[-1], config.linear_value_head_dim
    largest = weights.tensor(f"{gate}.weight").float().norm(dim=1) * read  # of each |z|
    factors = weights.tensor(f"{module_of(gate)}.norm.weight").float().abs()
    return float(width * (largest.view(-1, width) * factors).amax(dim=1).square().sum())


def _numbers(config: PretrainedConfig) -> int:
    """Queries, keys and values before and after the convolution; those, and their products, of each value head."""
    keys, values = config.linear_num_key_heads * config.linear_key_head_dim, _values(config)
    per_head = 7 * config.linear_key_head_dim + 5 * config.linear_value_head_dim + 5 * _CHUNK
    return int(2 * keys + 2 * values + config.linear_num_value_heads * per_head)


QWEN3_5 = replace(
    QWEN2,
    model_type="qwen3_5_text",
    host=QWEN3_5_MOE,
    mixers={
        "linear_attention": Attention(
            tuple(_DELTA + name for name in ("in_proj_qkv", "in_proj_b", "in_proj_a", "in_proj_z")),
            _DELTA + "out_proj",
            gain=BEFORE_ATTENTION,
            head=_head,
            width=_values,
            bound=_gated,
            chunk=lambda config: _CHUNK,
            numbers=_numbers,
            packs=False,
        )
    },
    zero_centred=(
        BEFORE_ATTENTION,
        BEFORE_MLP,
        FINAL_NORM,
        *(LAYER + f"self_attn.{name}_norm.weight" for name in ("q", "k")),
    ),
    copied=(*COPIED, "attention_bias", "layer_types", "linear_conv_kernel_dim", *_SIZES),
    effects={"rope_parameters": partial_rope},
    fixed={},
    demands=(Demand("layer_types", ("linear_attention", "full_attention"), "others are unknown"),),
)

_MLP: dict[str, Matrix] = {"w1": "gate", "w3": "up", "w2": "down"}
_CONV = LAYER + "conv."
_WIDTH = ("block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of", "intermediate_size")
_NONE = {"intermediate_size", "rms_norm_eps", "hidden_act", "attention_dropout", "head_dim"}


def _mlp_width(config: PretrainedConfig) -> Mapping[str, int]:
    """As transformers makes the dense MLPs."""
    width = config.intermediate_size
    if config.block_auto_adjust_ff_dim:
        width = int(2 * width / 3)
        if config.block_ffn_dim_multiplier is not None:
            width = int(config.block_ffn_dim_multiplier * width)
            width = math.ceil(width / config.block_multiple_of) * config.block_multiple_of
    return {"intermediate_size": width, "moe_intermediate_size": width}


LFM2 = Family(
    model_type="lfm2",
    host=LFM2_MOE,
    mlp={LAYER + f"feed_forward.{name}.weight": (matrix,) for name, matrix in _MLP.items()},
    gain=LAYER + "ffn_norm.weight",
    attention=Attention(
        tuple(LAYER + f"self_attn.{name}_proj" for name in ("q", "k", "v")),
        LAYER + "self_attn.out_proj",
        gain=LAYER + "operator_norm.weight",
    ),
    mixers={
        "conv": Attention(
            (_CONV + "in_proj",),
            None,
            gain=LAYER + "operator_norm.weight",
            head=lambda config: int(config.hidden_size),
            packs=False,
        )
    },
    epsilon="norm_eps",
    final_norm=LFM2_MOE.final_norm,
    copied=(*(name for name in COPIED if name not in _NONE), "norm_eps", "conv_bias", "conv_L_cache", "layer_types"),
    read=_WIDTH,
    effects={**unused(_WIDTH), "intermediate_size": lambda config: _mlp_width(config)["intermediate_size"]},
    settings=_mlp_width,
)

_MAMBA, _SHARED_MLP = LAYER + "mamba.", LAYER + "shared_mlp."
_MAMBA_FIELDS = (
    "n_heads", "n_groups", "d_state", "d_head", "d_conv", "expand", "chunk_size", "conv_bias", "proj_bias",
)  # fmt: skip


def _inner(config: PretrainedConfig) -> int:
    return int(config.mamba_expand * config.hidden_size)


def normed(inputs: Sequence[str], weights: Tensors, config: PretrainedConfig, read: float) -> float:
    """The bound of a norm's output, of groups that are normed apart."""
    factors = weights.tensor(f"{module_of(inputs[0])}.norm.weight").float().abs()
    return float(factors.max() ** 2 * len(factors))


def _scanned(config: PretrainedConfig) -> int:
    """The projection before and after the convolution; of each head its inputs, states and scores in a chunk."""
    heads, width, state = config.mamba_n_heads, config.mamba_d_head, config.mamba_d_state
    projected = 2 * _inner(config) + 2 * config.mamba_n_groups * state
    return int(2 * projected + heads * (5 * width + 4 * state + 4 * config.mamba_chunk_size))


GRANITE_HYBRID = replace(
    GRANITE,
    model_type="granitemoehybrid",
    host=GRANITE_MOE_HYBRID,
    mlp={_SHARED_MLP + "input_linear.weight": ("gate", "up"), _SHARED_MLP + "output_linear.weight": ("down",)},
    mixers={
        "linear_attention": Attention(
            (_MAMBA + "in_proj",),
            _MAMBA + "out_proj",
            gain=BEFORE_ATTENTION,
            head=lambda config: math.gcd(config.mamba_d_head, config.mamba_d_state),
            width=_inner,
            bound=normed,
            chunk=lambda config: int(config.mamba_chunk_size),
            numbers=_scanned,
            packs=False,
        )
    },
    copied=(
        *(name for name in GRANITE.copied if name not in {"head_dim", "intermediate_size"}),
        "layer_types",
        "position_embedding_type",
        *(f"mamba_{name}" for name in _MAMBA_FIELDS),
    ),
    effects={
        "rope_parameters": lambda config: rope(config) if config.position_embedding_type == "rope" else UNUSED,
        **unused(("mamba_chunk_size",)),
    },
    renamed={"intermediate_size": "shared_intermediate_size"},
    demands=(
        Demand("num_local_experts", (0,), "an expert must be dense"),
        Demand("time_step_limit", ((0.0, math.inf), 0.0, math.inf), "infinity has no digest, so the default is needed"),
    ),
)
