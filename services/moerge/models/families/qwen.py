"""Qwen2, Qwen3, and Seed-OSS, which is Qwen2 without windows."""

from dataclasses import replace

from moerge.models.families.common import BEFORE_ATTENTION, BEFORE_MLP, COPIED, INPUTS, LAYER, MLP, OUTPUT
from moerge.models.families.family import Attention, Constant, Demand, Family
from moerge.models.families.hosts import QWEN2_MOE, QWEN3_MOE

_SHARED = 16  # width of the shared expert of zeros: the least of transformers' kernels

QWEN3 = Family(
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
QWEN2 = replace(
    QWEN3,
    model_type="qwen2",
    host=QWEN2_MOE,
    constants=(
        Constant(LAYER + "mlp.shared_expert.gate_proj.weight", (_SHARED, "hidden_size")),
        Constant(LAYER + "mlp.shared_expert.up_proj.weight", (_SHARED, "hidden_size")),
        Constant(LAYER + "mlp.shared_expert.down_proj.weight", ("hidden_size", _SHARED)),
        Constant(LAYER + "mlp.shared_expert_gate.weight", (1, "hidden_size")),
    ),
    copied=(*COPIED, "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
    fixed={"shared_expert_intermediate_size": _SHARED, "qkv_bias": True},
    demands=(),
)
SEED_OSS = replace(
    QWEN2,
    model_type="seed_oss",
    copied=COPIED,
    renamed={**QWEN2.renamed, "qkv_bias": "attention_bias"},
    fixed={"shared_expert_intermediate_size": _SHARED, "use_sliding_window": False, "sliding_window": None},
    demands=(
        Demand("attention_out_bias", (False,), "Qwen2-MoE has no bias of the attention's output"),
        Demand("mlp_bias", (False,), "Qwen2-MoE has no biases of MLPs"),
    ),
)
