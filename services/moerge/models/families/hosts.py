"""The stock MoE classes that host dense families."""

from dataclasses import replace

from moerge.models.families.common import LAYER, PROJECTIONS
from moerge.models.families.family import Host, Matrix

_NAMES = {matrix: LAYER + f"mlp.experts.{{expert}}.{name}.weight" for name, matrix in PROJECTIONS.items()}
_BLOCK = LAYER + "block_sparse_moe."
_MIXTRAL_NAMES: dict[Matrix, str] = {"gate": "w1", "up": "w3", "down": "w2"}
_NO_OTHERS = {"decoder_sparse_step": 1, "mlp_only_layers": []}
_RENORMALISED = {"norm_topk_prob": True, "output_router_logits": False}

MIXTRAL = Host(
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    experts={matrix: _BLOCK + f"experts.{{expert}}.{name}.weight" for matrix, name in _MIXTRAL_NAMES.items()},
    router=_BLOCK + "gate.weight",
    router_module=LAYER + "mlp.gate",
    count="num_local_experts",
    fixed={"router_jitter_noise": 0.0, "output_router_logits": False},
)
QWEN2_MOE = Host(
    model_type="qwen2_moe",
    class_name="Qwen2MoeForCausalLM",
    experts=_NAMES,
    router=LAYER + "mlp.gate.weight",
    router_module=LAYER + "mlp.gate",
    count="num_experts",
    fixed={**_RENORMALISED, **_NO_OTHERS},
)
QWEN3_MOE = replace(QWEN2_MOE, model_type="qwen3_moe", class_name="Qwen3MoeForCausalLM")
FLEX_OLMO = replace(QWEN2_MOE, model_type="flex_olmo", class_name="FlexOlmoForCausalLM", fixed=_RENORMALISED)
HOSTS = {host.model_type: host for host in (MIXTRAL, QWEN2_MOE, QWEN3_MOE, FLEX_OLMO)}
