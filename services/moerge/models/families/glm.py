"""GLM, hosted by Qwen2-MoE, and Helium, hosted by Mixtral: interleaved ropes."""

from dataclasses import replace

from moerge.models.families.common import COPIED, FUSED_MLP, NO_BIAS
from moerge.models.families.effects import partial_rope
from moerge.models.families.family import Demand
from moerge.models.families.llama import MISTRAL
from moerge.models.families.qwen import QWEN2
from moerge.models.families.rope import STATIC, turned_pieces, whole_head_rope

GLM = replace(
    QWEN2,
    model_type="glm",
    mlp=FUSED_MLP,
    pieces=turned_pieces(interleaved=True),
    copied=COPIED,
    effects={"rope_parameters": partial_rope},
    renamed={**QWEN2.renamed, "qkv_bias": "attention_bias"},
    fixed={"use_sliding_window": False, "sliding_window": None},
    settings=whole_head_rope,
    demands=(STATIC,),
)
HELIUM = replace(
    MISTRAL,
    model_type="helium",
    pieces=turned_pieces(interleaved=True),
    copied=COPIED,
    fixed={"sliding_window": None},
    demands=(Demand("mlp_bias", (False,), NO_BIAS), Demand("attention_bias", (False,), NO_BIAS)),
)
