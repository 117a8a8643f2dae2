"""Qwen2, Qwen3, and Seed-OSS, which is Qwen2 without windows."""

from dataclasses import replace

from moerge.models.families.common import BEFORE_ATTENTION, BEFORE_MLP, COPIED, INPUTS, MLP, OUTPUT
from moerge.models.families.effects import unused
from moerge.models.families.family import Attention, Demand, Family
from moerge.models.families.hosts import MELLUM, QWEN2_MOE, QWEN3_MOE
from moerge.models.families.mellum import windowed
from moerge.models.families.rope import STATIC

_FULL = Family(
    model_type="qwen3",
    host=QWEN3_MOE,
    mlp=MLP,
    gain=BEFORE_MLP,
    attention=Attention(INPUTS, OUTPUT, gain=BEFORE_ATTENTION),
    copied=(*COPIED, "attention_bias"),
    renamed={"moe_intermediate_size": "intermediate_size"},
    fixed={"use_sliding_window": False, "sliding_window": None},
    demands=(Demand("layer_types", ("full_attention",), "Qwen3MoE has no windows that differ from layer to layer"),),
)
QWEN3 = replace(
    _FULL,
    otherwise=replace(
        _FULL, host=MELLUM, read=("layer_types", "sliding_window"), fixed={}, settings=windowed, demands=(STATIC,)
    ),
)
QWEN2 = replace(
    QWEN3,
    model_type="qwen2",
    host=QWEN2_MOE,
    copied=(*COPIED, "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
    effects=unused(("use_sliding_window", "max_window_layers")),
    fixed={"qkv_bias": True},
    demands=(),
    otherwise=None,
)
SEED_OSS = replace(
    QWEN2,
    model_type="seed_oss",
    copied=COPIED,
    renamed={**QWEN2.renamed, "qkv_bias": "attention_bias"},
    fixed={"use_sliding_window": False, "sliding_window": None},
    demands=(
        Demand("attention_out_bias", (False,), "Qwen2-MoE has no bias of the attention's output"),
        Demand("mlp_bias", (False,), "Qwen2-MoE has no biases of MLPs"),
    ),
)
