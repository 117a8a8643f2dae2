"""llama.cpp's limits, and the form of a published config in which its converter is right.

Source: llama.cpp's src/models and conversion folders, of October 2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moerge.models.families.family import Host
from moerge.models.families.hosts import HOSTS

_SHORT_ROPE = ("dynamic", "longrope")
"""Kinds of rope with other frequencies for longer texts."""
_YARN = {
    "attention_factor": None,
    "mscale": None,
    "mscale_all_dim": None,
    "beta_fast": 32,
    "beta_slow": 1,
    "truncate": True,
}
"""Settings of YaRN that llama.cpp or its Python binding ignores, with their defaults."""


@dataclass(frozen=True)
class Form:
    """A version as llama.cpp's converter is to read it."""

    config: dict[str, Any]  # its config.json
    renamed: tuple[Host, Host] | None = None  # give tensors of the first host the other's names, without its constants
    sinks: bool = False  # add attention sinks without weight
    frequencies: tuple[float, ...] = ()  # divisors of the rope's frequencies, [head_dim / 2], to be added; empty: none
    options: tuple[str, ...] = ()  # of the converter

    @property
    def changed(self) -> bool:
        return self.renamed is not None or self.sinks or bool(self.frequencies)


def refusals(config: Mapping[str, Any]) -> list[str]:
    """What keeps llama.cpp from running a version with this config.json: predicates of sentences."""
    host, scaled = HOSTS[config["model_type"]], _rope(config).get("rope_type")
    refused = [host.llama_cpp.refused] if host.llama_cpp.refused and host.llama_cpp.when(config) else []
    if config.get("hidden_act", "silu") != "silu":
        refused.append(f"computes experts with silu only, not with {config['hidden_act']}")
    if host.llama_cpp.refused in refused:
        return refused
    wide = _head_dim(config) * config["num_attention_heads"] != config["hidden_size"]
    if _extended(host) is None and config.get("attention_bias") and not host.llama_cpp.biased:
        refused.append(f"has no bias of the attention's output in {host.title}")
    if _extended(host) is None and (scaled == "llama3" or _tabled(config)):
        refused.append(f"ignores parts of the rope's scaling, {scaled}, in {host.title}")
    if wide and not host.llama_cpp.wide:
        refused.append(f"has only heads of hidden_size / num_attention_heads in {host.title}")
    if _extended(host) is not None and wide and _granite(config):
        what = "sliding windows" if _windows(config) else f"the rope's scaling, {scaled},"
        refused.append(f"has {what} only for heads of hidden_size / num_attention_heads")
    return refused


def _extended(host: Host) -> Host | None:
    """The host as which the converter gets a version, if GraniteMoeSWA has its layers with windows and frequencies."""
    given = host.llama_cpp.equivalent or host
    return given if given.llama_cpp.extended else None


def longest_text(config: Mapping[str, Any]) -> int | None:
    """The most tokens of a text for which a GGUF is exact; None without a limit below the model's own."""
    rope = _rope(config)
    if rope.get("rope_type") not in _SHORT_ROPE or rope.get("short_factor", 0) == rope.get("long_factor"):
        return None
    return _context(config)


def converter_form(config: Mapping[str, Any]) -> Form:
    """The form in which llama.cpp's converter makes a right GGUF of a version without `refusals`.

    - Its Qwen2-MoE computes the shared expert's gate as silu(x) / x, which is NaN for the published gate of zeros, and
      doesn't renormalise the weights of experts. Its llama architecture, of Mixtral, does, and reads biases.
    - That architecture has no sliding windows, and no factor of cosines and sines. GraniteMoeSWA has the same layers
      with windows, sinks and a factor of the attention's scores; divisors of the rope's frequencies are a tensor.
    """
    changed, host = dict(config), HOSTS[config["model_type"]]
    given = _extended(host)
    if given is None:
        return Form(changed, options=host.llama_cpp.options)
    changed |= {"model_type": given.model_type, "architectures": [given.class_name], "sliding_window": None}
    changed["num_local_experts"] = config.get("num_local_experts", config.get("num_experts"))
    for name in ("layer_types", "num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"):
        changed.pop(name, None)
    if "moe_intermediate_size" in config:
        changed["intermediate_size"] = config["moe_intermediate_size"]
    frequencies: tuple[float, ...] = ()
    if granite := _granite(config):
        frequencies, factor = _table(config) if _tabled(config) else ((), 1.0)
        windows = _windows(config) or [True] * config["num_hidden_layers"]
        changed |= {
            "model_type": "granitemoe_swa",
            "architectures": ["GraniteMoeSWAForCausalLM"],
            "attention_multiplier": factor**2 * _head_dim(config) ** -0.5,
            "logits_scaling": 1.0,
            "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
            "sliding_window": config["sliding_window"] if _windows(config) else _context(config),
            "max_position_embeddings": _context(config),
        }
        if frequencies:
            changed["rope_parameters"] = {"rope_type": "default", "rope_theta": _rope(config)["rope_theta"]}
            changed["rope_scaling"] = None
    return Form(changed, None if given is host else (host, given), granite, frequencies)


def _tabled(config: Mapping[str, Any]) -> bool:
    """Whether llama.cpp needs the rope's frequencies as a tensor."""
    rope = _rope(config)
    ignored = any(rope.get(name) not in (None, default) for name, default in _YARN.items())
    return rope.get("rope_type") == "longrope" or (rope.get("rope_type") == "yarn" and ignored)


def _table(config: Mapping[str, Any]) -> tuple[tuple[float, ...], float]:
    """The divisors of the rope's frequencies, [head_dim / 2], and the factor of cosines and sines, by transformers."""
    import torch
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings, rope = {name: value for name, value in config.items() if name != "rope_scaling"}, _rope(config)
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](AutoConfig.for_model(**settings), None)
    powers = torch.arange(0, _head_dim(config), 2, dtype=torch.float64) / _head_dim(config)
    return tuple((rope["rope_theta"] ** -powers / frequencies.double()).tolist()), float(factor)


def _context(config: Mapping[str, Any]) -> int:
    """The longest text with the rope's frequencies for short ones, in tokens."""
    rope, most = _rope(config), int(config["max_position_embeddings"])
    if rope.get("rope_type") not in _SHORT_ROPE:
        return most
    return int(rope.get("original_max_position_embeddings") or most)


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or {}


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _windows(config: Mapping[str, Any]) -> list[bool]:
    """For each layer, whether it has a sliding window shorter than the context; empty if none has."""
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if window is None or window >= _context(config):
        return []
    if "use_sliding_window" not in config:
        return [True] * layers
    windows = [kind == "sliding_attention" for kind in config.get("layer_types") or ()]
    return windows if any(windows) and config.get("use_sliding_window") else []


def _granite(config: Mapping[str, Any]) -> bool:
    """Whether only GraniteMoeSWA has this version's layers in llama.cpp."""
    return bool(_windows(config)) or _tabled(config)
