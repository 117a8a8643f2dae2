"""Llama, and its kind: InternLM3, IQuest-Coder, Mistral and Phi-3, hosted by Mixtral."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.families.common import (
    BEFORE_ATTENTION,
    BEFORE_MLP,
    COPIED,
    FUSED_MLP,
    INPUTS,
    LAYER,
    MLP,
    NO_BIAS,
    OUTPUT,
)
from moerge.models.families.effects import partial_rope, unused
from moerge.models.families.family import Attention, Demand, Family, Piece, head_dim
from moerge.models.families.hosts import MELLUM, MIXTRAL
from moerge.models.families.mellum import LINEAR, LINEAR_DEMAND, LINEAR_NORMS, LINEAR_PIECES, windowed
from moerge.models.families.rope import STATIC, turned, whole_head_rope

MISTRAL = Family(
    model_type="mistral",
    host=MIXTRAL,
    mlp=MLP,
    gain=BEFORE_MLP,
    attention=Attention(INPUTS, OUTPUT, gain=BEFORE_ATTENTION),
    copied=(*COPIED, "sliding_window"),
)
BIASED_LLAMA = replace(
    MISTRAL,
    model_type="llama",
    host=MELLUM,
    copied=(*COPIED, "attention_bias"),
    renamed={"moe_intermediate_size": "intermediate_size"},
    fixed={LINEAR: True},
    settings=windowed,
    pieces=LINEAR_PIECES,
    constants=LINEAR_NORMS,
    demands=(Demand("mlp_bias", (False,), "experts have no biases"), LINEAR_DEMAND, STATIC),
)
LLAMA = replace(
    MISTRAL,
    model_type="llama",
    copied=COPIED,
    fixed={"sliding_window": None},
    demands=(Demand("mlp_bias", (False,), NO_BIAS), Demand("attention_bias", (False,), NO_BIAS)),
    otherwise=BIASED_LLAMA,
)


def _llama(model_type: str) -> Family:
    """A model_type that transformers reads as Llama."""
    return replace(LLAMA, model_type=model_type, otherwise=replace(BIASED_LLAMA, model_type=model_type))


INTERNLM3, IQUESTCODER = _llama("internlm3"), _llama("iquestcoder")


def _query(qkv: Tensor, config: PretrainedConfig) -> Tensor:
    return qkv[: config.num_attention_heads * head_dim(config)]


def _key(qkv: Tensor, config: PretrainedConfig) -> Tensor:
    rows = config.num_key_value_heads * head_dim(config)
    return qkv[-2 * rows : -rows]


def _value(qkv: Tensor, config: PretrainedConfig) -> Tensor:
    return qkv[-config.num_key_value_heads * head_dim(config) :]


def _turned_query(qkv: Tensor, config: PretrainedConfig) -> Tensor:
    return turned(_query(qkv, config), config, interleaved=False)


def _turned_key(qkv: Tensor, config: PretrainedConfig) -> Tensor:
    return turned(_key(qkv, config), config, interleaved=False)


def _pieces(*parts: Callable[[Tensor, PretrainedConfig], Tensor]) -> dict[str, tuple[Piece, ...]]:
    made = tuple(Piece(f"{module}.weight", of) for module, of in zip(INPUTS, parts, strict=True))
    return {LAYER + "self_attn.qkv_proj.weight": made}


_WHOLE = replace(
    MISTRAL,
    model_type="phi3",
    mlp=FUSED_MLP,
    pieces=_pieces(_query, _key, _value),
    attention=Attention((LAYER + "self_attn.qkv_proj",), OUTPUT, gain=BEFORE_ATTENTION),
    copied=(*COPIED, "sliding_window", "original_max_position_embeddings"),
    effects={"rope_parameters": partial_rope, **unused(("original_max_position_embeddings",))},
    demands=(Demand("rope_parameters.partial_rotary_factor", (1.0,), "Mixtral rotates the whole head"),),
)
_PARTIAL = replace(
    _WHOLE, pieces=_pieces(_turned_query, _turned_key, _value), settings=whole_head_rope, demands=(STATIC,)
)
PHI3 = replace(_WHOLE, otherwise=_PARTIAL)
