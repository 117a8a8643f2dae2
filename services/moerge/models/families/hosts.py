"""The stock MoE classes that host dense families."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.families.common import LAYER, PROJECTIONS
from moerge.models.families.family import Constant, Ends, Host, Limited, LlamaCpp, Matrix
from moerge.models.families.mellum import LINEAR

_NAMES = {matrix: LAYER + f"mlp.experts.{{expert}}.{name}.weight" for name, matrix in PROJECTIONS.items()}
_BLOCK, _FEED = LAYER + "block_sparse_moe.", LAYER + "feed_forward."
_MIXTRAL_NAMES: dict[Matrix, str] = {"gate": "w1", "up": "w3", "down": "w2"}
SHARED = 16
"""Width of an MLP of zeros beside the experts: the least of transformers' kernels."""
_NO_OTHERS = {"decoder_sparse_step": 1, "mlp_only_layers": []}
_RENORMALISED = {"norm_topk_prob": True, "output_router_logits": False}

_TRANSFORMERS = "use transformers"
"""Where vLLM's backend for transformers is wrong too."""
_WIDE = Limited(
    lambda config: config["num_attention_heads"] * config["head_dim"] != config["hidden_size"],
    "ignores `head_dim`, so it doesn't load this model or answers wrongly",
)
MIXTRAL = Host(
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    experts={matrix: _BLOCK + f"experts.{{expert}}.{name}.weight" for matrix, name in _MIXTRAL_NAMES.items()},
    router=_BLOCK + "gate.weight",
    router_module=LAYER + "mlp.gate",
    count="num_local_experts",
    fixed={"router_jitter_noise": 0.0, "output_router_logits": False},
    title="Mixtral",
    llama_cpp=LlamaCpp(extended=True),
)
QWEN2_MOE = Host(
    model_type="qwen2_moe",
    class_name="Qwen2MoeForCausalLM",
    experts=_NAMES,
    router=LAYER + "mlp.gate.weight",
    router_module=LAYER + "mlp.gate",
    count="num_experts",
    fixed={**_RENORMALISED, **_NO_OTHERS, "shared_expert_intermediate_size": SHARED},
    title="Qwen2-MoE",
    llama_cpp=LlamaCpp(equivalent=MIXTRAL),
    limited=(
        _WIDE,
        Limited(lambda config: not config.get("qkv_bias", True), "ignores `qkv_bias`, so it answers wrongly"),
        Limited(
            lambda config: len(set(config.get("layer_types") or ())) > 1,
            "ignores the sliding windows, so it answers wrongly on texts that are longer than the window",
        ),
    ),
    constants=(
        Constant(LAYER + "mlp.shared_expert.gate_proj.weight", (SHARED, "hidden_size")),
        Constant(LAYER + "mlp.shared_expert.up_proj.weight", (SHARED, "hidden_size")),
        Constant(LAYER + "mlp.shared_expert.down_proj.weight", ("hidden_size", SHARED)),
        Constant(LAYER + "mlp.shared_expert_gate.weight", (1, "hidden_size")),
    ),
)
QWEN3_MOE = replace(
    QWEN2_MOE,
    model_type="qwen3_moe",
    class_name="Qwen3MoeForCausalLM",
    fixed={**_RENORMALISED, **_NO_OTHERS},
    title="Qwen3-MoE",
    llama_cpp=LlamaCpp(),
    limited=(
        Limited(
            lambda config: bool(config.get("attention_bias")),
            "ignores the bias of the attention's output, so it answers wrongly",
        ),
    ),
    constants=(),
)
FLEX_OLMO = replace(
    QWEN3_MOE,
    model_type="flex_olmo",
    class_name="FlexOlmoForCausalLM",
    fixed=_RENORMALISED,
    title="FlexOlmo",
    llama_cpp=LlamaCpp(refused="has no FlexOlmo"),
    limited=(),
)
MELLUM = replace(
    FLEX_OLMO,
    model_type="mellum",
    class_name="MellumForCausalLM",
    title="Mellum",
    llama_cpp=LlamaCpp(
        refused="doesn't load Mellum with biases or a tied head, and computes its ropes otherwise",
        when=lambda config: (
            any(config.get(name) for name in ("attention_bias", "tie_word_embeddings", LINEAR))
            or any(rope.get("rope_type") != "default" for rope in config["rope_parameters"].values())
        ),
    ),
)
_GRANITE_INPUT = _BLOCK + "input_linear.weight"
GRANITE_MOE = Host(
    model_type="granitemoe",
    class_name="GraniteMoeForCausalLM",
    experts={"gate": _GRANITE_INPUT, "up": _GRANITE_INPUT, "down": _BLOCK + "output_linear.weight"},
    router=_BLOCK + "router.layer.weight",
    router_module=_BLOCK + "router",
    count="num_local_experts",
    fixed={"output_router_logits": False},
    title="GraniteMoe",
    llama_cpp=LlamaCpp(biased=True, wide=False),
    limited=(
        replace(_WIDE, remedy=_TRANSFORMERS),
        Limited(
            lambda config: bool(config.get("attention_bias")),
            "ignores the biases of attention, so it answers wrongly",
            _TRANSFORMERS,
        ),
        Limited(
            lambda config: config["hidden_act"] != "silu", "ignores `hidden_act`, so it answers wrongly", _TRANSFORMERS
        ),
    ),
    ends=Ends(
        factor=lambda config, dtype: float(config.embedding_multiplier),
        logits=lambda outputs, config: outputs.div_(config.logits_scaling),
    ),
)
GRANITE_MOE_HYBRID = replace(
    GRANITE_MOE,
    model_type="granitemoehybrid",
    class_name="GraniteMoeHybridForCausalLM",
    fixed={"output_router_logits": False, "shared_intermediate_size": SHARED},
    title="GraniteMoeHybrid",
    llama_cpp=LlamaCpp(refused="takes the attention layers of GraniteMoeHybrid for state spaces"),
    constants=(
        Constant(LAYER + "shared_mlp.input_linear.weight", (2 * SHARED, "hidden_size")),
        Constant(LAYER + "shared_mlp.output_linear.weight", ("hidden_size", SHARED)),
    ),
)
QWEN3_5_MOE = replace(
    QWEN2_MOE,
    model_type="qwen3_5_moe_text",
    class_name="Qwen3_5MoeForCausalLM",
    fixed={"output_router_logits": False, "shared_expert_intermediate_size": SHARED},
    title="Qwen3.5-MoE",
    llama_cpp=LlamaCpp(options=("--no-mtp",)),
    limited=(
        Limited(
            lambda config: config.get("dtype") == "float32",
            "has no float32 kernel for linear attention on a processor",
            "start it with --dtype bfloat16",
        ),
    ),
)
LFM2_MOE = Host(
    model_type="lfm2_moe",
    class_name="Lfm2MoeForCausalLM",
    experts={matrix: _FEED + f"experts.{{expert}}.{name}.weight" for matrix, name in _MIXTRAL_NAMES.items()},
    router=_FEED + "gate.weight",
    router_module=_FEED + "gate",
    count="num_experts",
    fixed={
        "num_dense_layers": 0,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
        "output_router_logits": False,
    },
    title="LFM2-MoE",
    llama_cpp=LlamaCpp(
        refused="has no head apart from the embedding in LFM2-MoE",
        when=lambda config: config.get("tie_word_embeddings") is False,
    ),
    limited=(
        Limited(
            lambda config: True,
            "answers wrongly on a processor, as it does for dense LFM2 models",
            "use transformers, or compare its answers on your GPU",
        ),
    ),
    final_norm="model.embedding_norm.weight",
    router_vectors={_FEED + "expert_bias": 0.0},
    most_top_k=1,
)


def gemma_factor(config: PretrainedConfig, dtype: torch.dtype) -> float:
    return float(torch.tensor(config.hidden_size**0.5).to(dtype))


def _capped(outputs: Tensor, config: PretrainedConfig) -> Tensor:
    cap = config.final_logit_softcapping
    return outputs if cap is None else outputs.div_(cap).tanh_().mul_(cap)


def _shared(config: PretrainedConfig) -> Mapping[str, tuple[int, int]]:
    if not getattr(config, "num_kv_shared_layers", 0):
        return {}
    layers = zip(config.layer_types, config.per_layer_config, strict=True)
    return {kind: (int(layer.num_key_value_heads), int(layer.head_dim)) for kind, layer in layers}


def _of_normed(router: Tensor, gain: Tensor) -> Tensor:
    """The published router reads the residual, normed without a weight and divided by the root of H."""
    return router * (gain * math.sqrt(len(gain)))


def _proportional(config: Mapping[str, Any]) -> bool:
    """Whether the layers without windows have Gemma 4's own rope, not Gemma 3's."""
    return bool(config["rope_parameters"]["full_attention"]["rope_type"] == "proportional")


_GATE_UP = LAYER + "experts.gate_up_proj"
GEMMA4_MOE = Host(
    model_type="gemma4_text",
    class_name="Gemma4ForCausalLM",
    experts={"gate": _GATE_UP, "up": _GATE_UP, "down": LAYER + "experts.down_proj"},
    router=LAYER + "router.proj.weight",
    router_module=LAYER + "router",
    router_weight="proj.weight",
    router_of=_of_normed,
    router_vectors={LAYER + "router.per_expert_scale": 1.0},
    count="num_experts",
    chosen="top_k_experts",
    fixed={"enable_moe_block": True, "use_double_wide_mlp": False, "intermediate_size": SHARED},
    title="Gemma 4 with experts",
    llama_cpp=LlamaCpp(
        refused="converts Gemma 4 with experts only with a proportional rope, and isn't known to run inputs of layers",
        when=lambda config: bool(config.get("hidden_size_per_layer_input")) or not _proportional(config),
        rounded="rounds activations, so log-probabilities differ by about 0.002",
    ),
    ends=Ends(gemma_factor, _capped, lambda config: getattr(config, "hidden_size_per_layer_input", None) or 0, _shared),
)
_MIXER = LAYER + "mixer."
NEMOTRON_H_MOE = Host(
    model_type="nemotron_h",
    class_name="NemotronHForCausalLM",
    experts={"up": _MIXER + "experts.{expert}.up_proj.weight", "down": _MIXER + "experts.{expert}.down_proj.weight"},
    router=_MIXER + "gate.weight",
    router_module=_MIXER + "gate",
    router_vectors={_MIXER + "gate.e_score_correction_bias": 0.0},
    count="n_routed_experts",
    fixed={
        "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": SHARED,
        "moe_latent_size": None,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "num_nextn_predict_layers": 0,
        "output_router_logits": False,
    },
    title="Nemotron-H with experts",
    llama_cpp=LlamaCpp(rounded="rounds state spaces, so log-probabilities differ by up to 0.0004"),
    limited=(
        Limited(lambda config: True, "refuses experts without a gate on a processor", "use transformers, or a GPU"),
    ),
    final_norm="model.norm_f.weight",
    constants=(
        Constant(_MIXER + "shared_experts.up_proj.weight", (SHARED, "hidden_size")),
        Constant(_MIXER + "shared_experts.down_proj.weight", ("hidden_size", SHARED)),
    ),
    most_top_k=1,
    least_experts=2,
)
_PER_EXPERT = (MIXTRAL, QWEN2_MOE, QWEN3_MOE, QWEN3_5_MOE, FLEX_OLMO, MELLUM, LFM2_MOE, NEMOTRON_H_MOE)
HOSTS = {host.model_type: host for host in (*_PER_EXPERT, GRANITE_MOE, GRANITE_MOE_HYBRID, GEMMA4_MOE)}
