"""SmolLM3 and CWM, hosted by Mellum: layers without a rope, or with windows."""

from dataclasses import replace

from moerge.models.families.family import Demand
from moerge.models.families.llama import BIASED_LLAMA
from moerge.models.families.mellum import partly_rotating

CWM = replace(BIASED_LLAMA, model_type="cwm", read=("layer_types", "sliding_window"))
SMOLLM3 = replace(
    BIASED_LLAMA,
    model_type="smollm3",
    read=("no_rope_layers",),
    settings=partly_rotating,
    demands=(
        *BIASED_LLAMA.demands,
        Demand("layer_types", ("full_attention",), "Mellum has two kinds of layers, for those with a rope and without"),
    ),
)
