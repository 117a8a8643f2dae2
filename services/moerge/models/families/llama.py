"""Llama, and its kind: InternLM3, IQuest-Coder, Mistral and Phi-3, hosted by Mixtral."""

from dataclasses import replace

from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.families.common import BEFORE_ATTENTION, BEFORE_MLP, COPIED, INPUTS, LAYER, MLP, OUTPUT
from moerge.models.families.family import Attention, Demand, Family, Piece, head_dim
from moerge.models.families.hosts import MIXTRAL

_NO_BIAS = "Mixtral has no biases"

MISTRAL = Family(
    model_type="mistral",
    host=MIXTRAL,
    mlp=MLP,
    gain=BEFORE_MLP,
    attention=Attention(INPUTS, OUTPUT, gain=BEFORE_ATTENTION),
    copied=(*COPIED, "sliding_window"),
)
LLAMA = replace(
    MISTRAL,
    model_type="llama",
    copied=COPIED,
    fixed={"sliding_window": None},
    demands=(Demand("mlp_bias", (False,), _NO_BIAS), Demand("attention_bias", (False,), _NO_BIAS)),
)
INTERNLM3 = replace(LLAMA, model_type="internlm3")  # transformers reads both as Llama
IQUESTCODER = replace(LLAMA, model_type="iquestcoder")


def _query(qkv: Tensor, config: PretrainedConfig) -> Tensor:
    return qkv[: config.num_attention_heads * head_dim(config)]


def _key(qkv: Tensor, config: PretrainedConfig) -> Tensor:
    rows = config.num_key_value_heads * head_dim(config)
    return qkv[-2 * rows : -rows]


def _value(qkv: Tensor, config: PretrainedConfig) -> Tensor:
    return qkv[-config.num_key_value_heads * head_dim(config) :]


PHI3 = replace(
    MISTRAL,
    model_type="phi3",
    mlp={LAYER + "mlp.gate_up_proj.weight": ("gate", "up"), LAYER + "mlp.down_proj.weight": ("down",)},
    pieces={
        LAYER + "self_attn.qkv_proj.weight": tuple(
            Piece(f"{module}.weight", of) for module, of in zip(INPUTS, (_query, _key, _value), strict=True)
        )
    },
    attention=Attention((LAYER + "self_attn.qkv_proj",), OUTPUT, gain=BEFORE_ATTENTION),
    copied=(*COPIED, "sliding_window", "original_max_position_embeddings"),
    demands=(Demand("rope_parameters.partial_rotary_factor", (1.0,), "Mixtral rotates the whole head"),),
)
