"""The versions that every engine runs: a pairwise plan over family, body, experts, k, head and number format."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from moerge.models.families.registry import FAMILIES

_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1 + i / 8 for i in range(16)],
    "long_factor": [2 + i / 4 for i in range(16)], "original_max_position_embeddings": 64,
}  # fmt: skip
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 4, 8]}
_MULTIPLIERS = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.75, "logits_scaling": 2.0,
}  # fmt: skip
_PARTIAL = {**_LONGROPE, "short_factor": [1 + i / 4 for i in range(8)], "long_factor": [2 + i / 2 for i in range(8)]}
_BYTES = {"vocab_size": 259}
"""Of the tests' tokenizer: llama.cpp's converter cuts Gemma's embedding to it."""
_GEMMA4 = {
    **_BYTES, "head_dim": 32, "global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0, "sliding_window": 12,
}  # fmt: skip
_PADDED = {"vocab_size": 304}
"""A multiple of 16, to which that converter pads the tokens of state space models."""
WINDOW = 12
"""Shorter than the texts, so that an engine without windows answers differently."""
TIED = "tied head"
"""Settings of versions whose head is the embedding."""
SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "llama": {
        "plain": {},
        "wide heads": {"head_dim": 64},
        "llama3 rope": {"rope_parameters": _LLAMA3},
        "linear rope": {"rope_parameters": _LINEAR},
        "yarn rope": {"rope_parameters": _YARN},
        "dynamic rope": {"rope_parameters": _DYNAMIC, "max_position_embeddings": 32},
        "biases": {"attention_bias": True},
    },
    "internlm3": {"plain": {"head_dim": 32}},
    "iquestcoder": {"plain": {"head_dim": 32}},
    "mistral": {"plain": {"sliding_window": None}, "window": {"sliding_window": WINDOW}},
    "phi3": {
        "plain": {},
        "window": {"sliding_window": WINDOW},
        "long rope": {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 64},
        "partial rotation": {"partial_rotary_factor": 0.5},
        "partial rotation, long rope": {
            "partial_rotary_factor": 0.5,
            "rope_parameters": _PARTIAL,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {
        "plain": {},
        "yarn rope": {"rope_parameters": _YARN},
        "window": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0},
        "windows in some layers": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
        "wide heads": {"head_dim": 64},
        "Qwen2.5-VL": {"head_dim": 32, "rope_parameters": _MROPE},
    },
    "qwen3": {
        "plain": {"head_dim": 64},
        "biases": {"head_dim": 64, "attention_bias": True},
        "windows in some layers": {
            "head_dim": 64,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
        "Qwen3-VL": {"head_dim": 32, "rope_parameters": {**_MROPE, "mrope_interleaved": True}},
    },
    "seed_oss": {
        "plain": {"head_dim": 32},
        "wide heads": {"head_dim": 64},
        "no biases": {"head_dim": 32, "attention_bias": False},
    },
    "olmo2": {"plain": {}, "biases": {"attention_bias": True}},
    "glm": {
        "plain": {"head_dim": 32},
        "wide heads": {"head_dim": 64},
        "yarn rope": {"head_dim": 32, "rope_parameters": _YARN},
    },
    "helium": {"plain": {"head_dim": 32}},
    "smollm3": {"plain": {"no_rope_layer_interval": 2}},
    "cwm": {
        "plain": {
            "head_dim": 32,
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": _LLAMA3,
        }
    },
    "ministral3": {"plain": {"head_dim": 32}},
    "granite": {
        "plain": _MULTIPLIERS,
        "biases": {**_MULTIPLIERS, "attention_bias": True},
        "wide heads": {**_MULTIPLIERS, "head_dim": 64},
    },
    "qwen3_5_text": {"plain": {"head_dim": 64, "linear_key_head_dim": 128, "linear_value_head_dim": 128}},
    "granitemoehybrid": {
        "plain": {**_PADDED, "shared_intermediate_size": 192, "mamba_n_heads": 8, "mamba_d_state": 32},
    },
    "lfm2": {"plain": {"block_multiple_of": 32}, TIED: {"block_multiple_of": 32}},
    "gemma": {"plain": {"head_dim": 32}, "wide heads": {"head_dim": 64}},
    "gemma3_text": {"plain": {**_BYTES, "head_dim": 32, "sliding_window": WINDOW}},
    "gemma4_text": {
        "plain": _GEMMA4,
        "capped": {**_GEMMA4, "final_logit_softcapping": 2.0},
        "layer inputs": {
            **_GEMMA4,
            "attention_k_eq_v": False,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": _BYTES["vocab_size"],
            "num_kv_shared_layers": 1,
            "use_double_wide_mlp": True,
            "layer_types": ["full_attention", "full_attention"],
        },
    },
    "gemma4_unified_text": {"plain": _GEMMA4},
    "nemotron_h": {
        "plain": {
            **_PADDED,
            "head_dim": 32,
            "mamba_num_heads": 8,
            "mamba_head_dim": 32,
            "ssm_state_size": 32,
            "n_groups": 2,
        },
    },
}
"""Family -> name -> settings of its dense config."""
WRAPPERS = {"Qwen2.5-VL": "qwen2_5_vl", "Qwen3-VL": "qwen3_vl"}
"""Settings whose experts are the text models of wrappers -> the wrapper's model_type."""
_FACTORS: Mapping[str, Sequence[Any]] = {
    "family": ("llama", "mistral", "phi3", "qwen2", "qwen3", "olmo2"),
    "body": ("seed", "average", "regmean"),
    "experts": (2, 3, 5, 8),
    "top_k": (1, 2),
    "head": ("own", "tied", "omitted"),
    "dtype": ("float32", "bfloat16"),
}


@dataclass(frozen=True)
class Case:
    """One version.

    Attributes:
        family: of the dense experts.
        setting: name of their settings.
        body: its method; under a seed's the MLPs are fitted, if they can be. Only an average has an averaged head.
        experts: their number.
        top_k: experts per token.
        head: the experts' own; tied to their embedding; or tied, and omitted from the version.
        dtype: of the stored weights.
    """

    family: str
    setting: str
    body: str
    experts: int
    top_k: int
    head: str
    dtype: str

    @property
    def name(self) -> str:
        words = (self.family, self.setting, self.body, f"{self.experts}x{self.top_k}", self.head, self.dtype)
        return "-".join(words).replace(" ", "_").replace("phi3", "phi_3")  # by that name llama.cpp wants its tokenizer

    @property
    def wrapper(self) -> str | None:
        """The model_type of the wrappers whose text models are the experts; None without wrappers."""
        return WRAPPERS.get(self.setting)

    @property
    def settings(self) -> dict[str, Any]:
        return {**SETTINGS[self.family][self.setting], "tie_word_embeddings": self.head != "own"}


def possible(row: Mapping[str, Any]) -> bool:
    """Tell whether such a version exists. A solved head is no embedding; some classes have one expert per token."""
    if "family" in row and FAMILIES[row["family"]].host.refusal(row.get("top_k", 1)):
        return False
    return row.get("head") != "omitted" or row.get("body", "average") == "average"


def cases() -> list[Case]:
    """Cases with every setting, and every possible pair of values of two factors."""
    rows = list(pairwise(_FACTORS))
    result, number = [], dict.fromkeys(SETTINGS, 0)
    for row in rows:
        names = tuple(SETTINGS[row["family"]])
        result.append(Case(setting=names[number[row["family"]] % len(names)], **row))
        number[row["family"]] += 1
    for family, settings in SETTINGS.items():  # what a family has beyond its rows
        for setting in tuple(settings)[number[family] :]:
            dtype = "float32" if number[family] else "bfloat16"
            top_k = min(1 + len(result) % 2, FAMILIES[family].host.most_top_k or 2)
            body, head = ("average", "omitted") if setting == TIED else ("regmean", "own")
            result.append(Case(family, setting, body, 3, top_k, head, dtype))
    order = [(family, setting) for family, settings in SETTINGS.items() for setting in settings]
    return sorted(result, key=lambda case: order.index((case.family, case.setting)))


def pairwise(factors: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Possible rows that together have every possible pair of values; each is the one with most pairs left."""
    left = {
        ((one, a), (other, b))
        for one, other in combinations(factors, 2)
        for a, b in product(factors[one], factors[other])
        if possible({one: a, other: b})
    }
    every = [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]
    rows = [row for row in every if possible(row)]
    while left:
        best = max(rows, key=lambda row: sum(pair in left for pair in combinations(row.items(), 2)))
        left.difference_update(combinations(best.items(), 2))
        yield best
