"""Ministral 3, hosted by Mixtral up to its original context."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import PretrainedConfig

from moerge.models.families.family import DENSE_CONTEXT, Demand
from moerge.models.families.llama import MISTRAL

_REMOVED = ("type", "llama_4_scaling_beta", "max_position_embeddings")


def _short(config: PretrainedConfig) -> Mapping[str, Any]:
    """The settings for positions below the original context, where the scale of queries is 1."""
    rope, most = config.rope_parameters, int(config.max_position_embeddings)
    return {
        "rope_parameters": {name: value for name, value in rope.items() if name not in _REMOVED},
        "max_position_embeddings": min(most, int(rope["original_max_position_embeddings"])),
        DENSE_CONTEXT: most,
    }


MINISTRAL3 = replace(
    MISTRAL,
    model_type="ministral3",
    settings=_short,
    demands=(Demand("rope_parameters.rope_type", ("yarn",), "its original context is a setting of YaRN"),),
)
