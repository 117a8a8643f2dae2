"""Granite, hosted by GraniteMoe."""

from dataclasses import replace

from moerge.models.families.common import COPIED
from moerge.models.families.family import Demand
from moerge.models.families.hosts import GRANITE_MOE
from moerge.models.families.llama import MISTRAL

_MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
GRANITE = replace(
    MISTRAL,
    model_type="granite",
    host=GRANITE_MOE,
    mlp_factor=lambda config: float(config.residual_multiplier),
    ends=GRANITE_MOE.ends,
    copied=(*COPIED, "attention_bias", *_MULTIPLIERS),
    demands=(Demand("mlp_bias", (False,), "the experts of GraniteMoe have no biases"),),
)
