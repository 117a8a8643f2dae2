"""Checkpoints that wrap a text model, as for images: the text model's names and settings, and the parts beside it."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, PretrainedConfig

_TEXT_CONFIG = "text_config"
_FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Wrappers whose older config.json has the text model's fields beside its own -> the text model's model_type."""
TWINS = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Text models that transformers can't load alone -> the model_type with the same logits for text.

They rotate by three positions (mrope), which are equal for text.
"""
_SHARED = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "quantization_config")
"""Settings whose default is the wrapper's."""
_TIED = "tie_word_embeddings"  # the wrapper's, which ties the text model's head

_PREFIX = re.compile(r"model\.language_model\.|language_model\.model\.|backbone\.")
_EMBEDDINGS = "model.embeddings.weight"
"""The name of the embedding in models that call the last norm `norm_f`, such as Nemotron-H."""
_PARTS = {
    kind: re.compile(rf"(model\.)?({names})\.")
    for kind, names in {
        "vision tower": "visual|vision_tower|vision_embedder",
        "audio tower": "audio_tower",
        "projector": "multi_modal_projector|embed_vision|embed_audio",
        "multi-token prediction": "mtp",
    }.items()
}
"""Parts that the logits for text don't depend on, by their tensors' names."""


@dataclass(frozen=True)
class Part:
    """A part that isn't read: its number of tensors and of parameters."""

    tensors: int = 0
    parameters: int = 0

    def plus(self, parameters: int) -> "Part":
        """The part with one more tensor."""
        return Part(self.tensors + 1, self.parameters + parameters)


def part_of(name: str) -> str | None:
    """The kind of the part that a tensor belongs to; None for the text model's."""
    return next((kind for kind, names in _PARTS.items() if names.match(name)), None)


def text_name(name: str) -> str:
    """The name of a text model's tensor or module without the wrapper's prefix; the embedding's is always the same."""
    if (match := _PREFIX.match(name)) is not None:
        name = f"model.{name[match.end() :]}"
    if name.removesuffix(".weight") == _EMBEDDINGS.removesuffix(".weight"):
        name = name.replace("embeddings", "embed_tokens")
    return name.removeprefix("language_model.") if name.startswith("language_model.lm_head.") else name


def stock_name(name: str, names: Container[str]) -> str:
    """The name of a text model's tensor in transformers, among those with these names."""
    return _EMBEDDINGS if text_name(_EMBEDDINGS) == name and "model.norm_f.weight" in names else name


def described(parts: Mapping[str, Part]) -> str:
    """The parts with their sizes, as for a message; empty without parts."""
    return ", ".join(
        f"{kind} ({part.tensors:,} tensors, {part.parameters:,} parameters)" for kind, part in sorted(parts.items())
    )


def is_wrapper(content: Mapping[str, Any]) -> bool:
    """Tell whether the fields of a config.json are those of a wrapper."""
    return isinstance(content.get(_TEXT_CONFIG), Mapping) or str(content.get("model_type")) in _FLAT


def text_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the text model in the config.json of a wrapper."""
    text, model_type = content.get(_TEXT_CONFIG), content.get("model_type")
    if not isinstance(text, Mapping):
        text = {name: value for name, value in content.items() if not name.endswith("_config")}
        text["model_type"] = _FLAT.get(str(model_type))
    shared = {name: content[name] for name in _SHARED if text.get(name) is None and name in content}
    if content.get(_TIED) is not None:
        shared[_TIED] = content[_TIED]
    return {**text, **shared}


def text_config(content: Mapping[str, Any]) -> PretrainedConfig:
    """The config of the text model in a wrapper's config.json; of a twin, that of its equal.

    Errors are those of transformers.
    """
    config: PretrainedConfig = AutoConfig.for_model(**text_fields(content))
    if (twin := TWINS.get(config.model_type)) is None:
        return config
    fields = config.to_dict()
    rope = {name: value for name, value in fields["rope_parameters"].items() if not name.startswith("mrope_")}
    rope.pop("type", None)  # mrope's older name
    tied = {_TIED: getattr(config, _TIED, False)}
    result: PretrainedConfig = AutoConfig.for_model(**{**fields, **tied, "model_type": twin, "rope_parameters": rope})
    return result
