"""Effects of config fields on logits, in all families; a family's own ones replace them."""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

from moerge.models.families.family import TOKEN_IDS, UNUSED, Effect, head_dim

_ORIGINAL, _PART = "original_max_position_embeddings", "partial_rotary_factor"
_READ: dict[str, Mapping[str, Any]] = {
    "default": {_PART: 1.0},
    "linear": {_PART: 1.0, "factor": 1.0},
    "dynamic": {_PART: 1.0, "factor": 1.0},
    "proportional": {_PART: 1.0, "factor": 1.0},
    "llama3": {_PART: 1.0, **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL))},
    "yarn": {_PART: 1.0, "factor": None, _ORIGINAL: None, "beta_fast": 32, "beta_slow": 1, "truncate": True},
    "longrope": {_PART: 1.0, **dict.fromkeys(("short_factor", "long_factor", _ORIGINAL))},
}
"""Type of rope -> the settings that transformers reads for its frequencies, with their defaults."""
_OLD = {"type", "max_position_embeddings", "mrope_interleaved"}
"""Settings that are read under another name, nowhere, or for images only."""
_DIGITS = 9  # decimals of a computed factor, which are the same on every processor


def unused(names: Iterable[str]) -> dict[str, Effect]:
    """The effects of fields on which no logit depends."""
    return dict.fromkeys(names, lambda config: UNUSED)


def rope(config: PretrainedConfig) -> Any:
    """The ropes of a config, or of its kinds of layers: the settings that are read, whatever their spelling.

    A default one rotates whole heads.
    """
    written = config.rope_parameters
    if not any(isinstance(value, Mapping) for value in written.values()):
        return _rope(written, config)
    kinds = sorted(set(config.layer_types) & written.keys())
    return {kind: _rope(written[kind], config, kind) for kind in kinds}


def partial_rope(config: PretrainedConfig) -> Any:
    """As `rope`, of families whose default one may rotate a part of a head."""
    return _rope(config.rope_parameters, config, partial=True)


def _rope(
    written: Mapping[str, Any], config: PretrainedConfig, kind: str | None = None, *, partial: bool = False
) -> dict[str, Any]:
    type_ = written["rope_type"]
    if type_ not in _READ:
        return dict(written)
    if type_ == "linear" and written.get("factor") == 1 and (partial or written.get(_PART, 1) == 1):
        type_ = "default"
    result = {"rope_type": type_, "rope_theta": written.get("rope_theta")}
    known = RopeParameters.__annotations__.keys() | _OLD
    result |= {name: value for name, value in written.items() if name not in known}
    result |= {name: _given(written, name, default) for name, default in _READ[type_].items()}
    if type_ == "default" and not partial:
        del result[_PART]
    if type_ == "dynamic":
        result["max_position_embeddings"] = config.max_position_embeddings
    if type_ in ("yarn", "longrope"):
        result["attention_factor"] = round(float(ROPE_INIT_FUNCTIONS[type_](config, None, layer_type=kind)[1]), _DIGITS)
    if type_ == "yarn" and result["factor"] is None:
        result["factor"] = config.max_position_embeddings / result[_ORIGINAL]
    return result


def _given(written: Mapping[str, Any], name: str, default: Any) -> Any:
    return default if (value := written.get(name)) is None else value


def _context(config: PretrainedConfig) -> Any:
    """The largest position, if a rope depends on it."""
    longer = copy(config)
    longer.max_position_embeddings = 2 * config.max_position_embeddings
    ropes = (rope(item) if hasattr(item, "rope_parameters") else None for item in (config, longer))
    return UNUSED if next(ropes) == next(ropes) else config.max_position_embeddings


def _window(config: PretrainedConfig) -> Any:
    """The window, if a layer has one."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    return config.sliding_window if "sliding_attention" in kinds else UNUSED


def _activation(field: str) -> Effect:
    """The activation that a field names, which is silu for `swish`."""
    return lambda config: "silu" if (name := getattr(config, field)) == "swish" else name


_OF_TRAINING = ("attention_dropout", "initializer_range")
EFFECTS: dict[str, Effect] = {
    **unused((*TOKEN_IDS, *_OF_TRAINING)),
    "head_dim": lambda config: config.to_dict()["head_dim"] or head_dim(config),
    **{name: _activation(name) for name in ("hidden_act", "hidden_activation", "mlp_hidden_act", "mamba_hidden_act")},
    "rope_parameters": rope,
    "max_position_embeddings": _context,
    "sliding_window": _window,
}
"""Dense field -> its effect; that of others is their value."""
