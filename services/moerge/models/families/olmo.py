"""OLMo 2, hosted by FlexOlmo."""

from moerge.models.families.common import BEFORE_MLP, COPIED, INPUTS, LAYER, MLP, OUTPUT
from moerge.models.families.family import Attention, Family
from moerge.models.families.hosts import FLEX_OLMO

_AFTER_MLP = LAYER + "post_feedforward_layernorm.weight"
OLMO2 = Family(
    model_type="olmo2",
    host=FLEX_OLMO,
    mlp=MLP,
    gain=None,
    added=(BEFORE_MLP, _AFTER_MLP),
    output_norm=_AFTER_MLP,
    attention=Attention(INPUTS, OUTPUT, gain=None),
    copied=(*COPIED, "attention_bias"),
)
