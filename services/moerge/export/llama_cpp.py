"""llama.cpp's limits, and the form of a published config in which its converter is right.

Source: llama.cpp's src/models and conversion folders, of October 2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SHORT_ROPE = ("dynamic", "longrope")
"""Kinds of rope with other frequencies for longer texts."""
_DIVIDED = ("llama3", "longrope")
"""Kinds of rope that divide each frequency by its own number, which llama.cpp's Qwen3-MoE doesn't."""


@dataclass(frozen=True)
class Form:
    """A version as llama.cpp's converter is to read it.

    Attributes:
        config: its config.json.
        renamed: give the tensors Mixtral's names, without the shared expert, which is zero.
        sinks: add attention sinks without weight.
        frequencies: divisors of the rope's frequencies, [head_dim / 2], to be added; empty for none.
    """

    config: dict[str, Any]
    renamed: bool = False
    sinks: bool = False
    frequencies: tuple[float, ...] = ()

    @property
    def changed(self) -> bool:
        return self.renamed or self.sinks or bool(self.frequencies)


def refusals(config: Mapping[str, Any]) -> list[str]:
    """The reasons why llama.cpp can't run a version with this config.json; empty if it can."""
    kind, rope = config.get("model_type"), _rope(config).get("rope_type", "default")
    found = []
    if kind not in ("mixtral", "qwen2_moe", "qwen3_moe"):
        found.append(f"llama.cpp has no {_class(config)}.")
    if config.get("hidden_act", "silu") != "silu":
        found.append(f"llama.cpp computes MoE experts with silu only, and this version's have {config['hidden_act']}.")
    if kind == "qwen3_moe" and config.get("attention_bias"):
        found.append("llama.cpp's Qwen3-MoE has no bias in the attention's output.")
    if kind == "qwen3_moe" and rope in _DIVIDED:
        found.append(f"llama.cpp's Qwen3-MoE ignores the rope's scaling, {rope}.")
    if _windows(config) and not _granite(config):
        found.append("llama.cpp has sliding windows only for heads of hidden_size / num_attention_heads.")
    return found


def limits(config: Mapping[str, Any]) -> list[str]:
    """What a consumer of a version with this config.json must know about llama.cpp, in sentences; empty for nothing."""
    if refused := refusals(config):
        return [*refused, "So there is no GGUF of it: moerge export refuses."]
    found = []
    if converter_form(config).changed:
        wrong = "NaN" if config["model_type"] == "qwen2_moe" else "wrong log-probabilities"
        found.append(f"Convert it with moerge export: llama.cpp's converter alone makes a GGUF with {wrong}.")
    return found + context_limits(config)


def context_limits(config: Mapping[str, Any]) -> list[str]:
    """The limits of a GGUF by `moerge export`, in sentences; empty for none."""
    if _rope(config).get("rope_type") not in _SHORT_ROPE:
        return []
    return [f"A GGUF is exact for texts of up to {_short_context(config):,} tokens, and has that context."]


def converter_form(config: Mapping[str, Any]) -> Form:
    """The form in which llama.cpp's converter makes a right GGUF of a version without `refusals`.

    - Its Qwen2-MoE computes the shared expert's gate as silu(x) / x, which is NaN for the published gate of zeros, and
      doesn't renormalise the weights of experts. Its llama architecture, of Mixtral, does, and reads biases.
    - That architecture has no sliding windows; GraniteMoeSWA has the same layers with windows and sinks.
    - It reads the divisors of the rope's frequencies from a tensor, and the attention's factor as YaRN's.
    """
    own, kind = dict(config), config["model_type"]
    if kind == "qwen3_moe":
        return Form(own)
    own["model_type"], own["architectures"] = "mixtral", ["MixtralForCausalLM"]
    own["num_local_experts"] = config.get("num_local_experts", config.get("num_experts"))
    if windows := _windows(config):
        own["model_type"], own["architectures"] = "granitemoe_swa", ["GraniteMoeSWAForCausalLM"]
        types = ("full_attention", "sliding_attention")
        own |= {"layer_types": [types[each] for each in windows], "logits_scaling": 1.0}
        own["attention_multiplier"] = config["head_dim"] ** -0.5
    else:
        own["sliding_window"] = None
        own.pop("layer_types", None)
    if kind == "qwen2_moe":
        own["intermediate_size"] = config.get("moe_intermediate_size", config["intermediate_size"])
        for name in ("moe_intermediate_size", "num_experts", "shared_expert_intermediate_size"):
            own.pop(name, None)
    frequencies: tuple[float, ...] = ()
    if _rope(config).get("rope_type") == "longrope":
        frequencies = tuple(_rope(config)["short_factor"])
        own |= _short_rope(config)
    return Form(own, kind == "qwen2_moe", bool(windows), frequencies)


def _short_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config's fields for a rope without scaling but with an attention factor."""
    context = _short_context(config)
    rope = {"rope_type": "yarn", "factor": 1.0, "extrapolation_factor": 0.0, "rope_theta": _rope(config)["rope_theta"]}
    rope |= {"original_max_position_embeddings": context, "attention_factor": _attention_factor(config)}
    return {"rope_parameters": rope, "rope_scaling": None, "max_position_embeddings": context}


def _attention_factor(config: Mapping[str, Any]) -> float:
    """The factor of cosines and sines by transformers."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    own = {name: value for name, value in config.items() if name != "rope_scaling"}
    _, factor = ROPE_INIT_FUNCTIONS["longrope"](AutoConfig.for_model(**own), None)
    return float(factor)


def _short_context(config: Mapping[str, Any]) -> int:
    """The longest text with the rope's frequencies for short ones, in tokens."""
    original = _rope(config).get("original_max_position_embeddings")
    return int(original or config.get("original_max_position_embeddings") or config["max_position_embeddings"])


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or {}


def _class(config: Mapping[str, Any]) -> str:
    return str((config.get("architectures") or [config.get("model_type")])[0]).removesuffix("ForCausalLM")


def _windows(config: Mapping[str, Any]) -> list[bool]:
    """For each layer, whether it has a sliding window shorter than the context; empty if none has."""
    layers, window = config.get("num_hidden_layers", 0), config.get("sliding_window")
    if window is None or window >= config["max_position_embeddings"]:
        return []
    if config.get("model_type") == "mixtral":
        return [True] * layers
    if not config.get("use_sliding_window"):
        return []
    own = [each == "sliding_attention" for each in config.get("layer_types") or ()]
    return own if any(own) else []


def _granite(config: Mapping[str, Any]) -> bool:
    """Whether the heads have the width that GraniteMoeSWA has in llama.cpp."""
    return bool(config.get("head_dim", 0) * config["num_attention_heads"] == config["hidden_size"])
