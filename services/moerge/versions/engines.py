"""The limits of engines that run a version, by its config.json, as measured by `make test-engines`."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from moerge.export.llama_cpp import converter_form, longest_text, refusals
from moerge.models.families.family import DENSE_CONTEXT
from moerge.models.families.gemma import LINEAR_VALUES
from moerge.models.families.hosts import HOSTS
from moerge.models.families.mellum import LINEAR
from moerge_proto.versions import EngineLimit

_EVERY = "every engine"
_SCALED = {LINEAR: "queries and keys", LINEAR_VALUES: "values"}
"""Config fields of linear norms -> the projections before them."""


def engine_limits(config: Mapping[str, Any]) -> list[EngineLimit]:
    """The limits of engines that run a version with this config.json; none for most versions."""
    return [*_every(config), *_vllm(config), *_llama_cpp(config)]


def _every(config: Mapping[str, Any]) -> Iterator[EngineLimit]:
    """Limits of the published class itself."""
    longest = config["max_position_embeddings"]
    if config.get(DENSE_CONTEXT, longest) > longest:
        happens = f"answers otherwise than the dense experts on texts longer than {longest:,} tokens"
        yield EngineLimit(engine=_EVERY, happens=happens, remedy="use shorter texts")
    for name in filter(config.get, _SCALED):
        happens = (
            "answers wrongly in float16, with a quantised cache, and after training or adapting its projections of "
            f"{_SCALED[name]}, which are multiples of 2^-30"
        )
        yield EngineLimit(engine=_EVERY, happens=happens, remedy="use bfloat16 or float32, and tune the dense experts")


def _vllm(config: Mapping[str, Any]) -> Iterator[EngineLimit]:
    """vLLM 0.32: limits of its classes, and its fixed rope."""
    rope, host = config.get("rope_parameters") or {}, HOSTS[config["model_type"]]
    for item in host.limited:
        if item.when(config):
            yield EngineLimit(engine="vLLM", happens=item.happens, remedy=item.remedy)
    if rope.get("rope_type") == "dynamic":
        longest = config["max_position_embeddings"]
        happens = f"answers wrongly on texts longer than {longest} tokens, with this model's dynamic rope"
        yield EngineLimit(engine="vLLM", happens=happens, remedy=f"start it with --max-model-len {longest}")
    factor = rope.get("attention_factor") if rope.get("rope_type") == "longrope" else None
    if factor is not None and not math.isclose(factor, _longrope_factor(config), rel_tol=1e-6):
        happens = "ignores the rope's `attention_factor`, so it answers wrongly"
        yield EngineLimit(engine="vLLM", happens=happens, remedy="use transformers")


def _longrope_factor(config: Mapping[str, Any]) -> float:
    """The factor of cosines and sines that vLLM computes for a longrope."""
    original = config["rope_parameters"]["original_max_position_embeddings"]
    times = config["max_position_embeddings"] / original
    return 1.0 if times <= 1 else math.sqrt(1 + math.log(times) / math.log(original))


def _llama_cpp(config: Mapping[str, Any]) -> Iterator[EngineLimit]:
    """llama.cpp of October 2026: wrong answers, and limits of `moerge export`."""
    name = "llama.cpp"
    if refused := refusals(config):
        for happens in refused:
            yield EngineLimit(engine=name, happens=happens, remedy="use transformers or vLLM")
        return
    form, rounded = converter_form(config), HOSTS[config["model_type"]].llama_cpp.rounded
    if form.changed or form.options:
        happens = f"{'answers wrongly' if form.changed else 'has no GGUF'} if its converter alone writes the GGUF"
        yield EngineLimit(engine=name, happens=happens, remedy="write the GGUF with moerge export")
    if rounded:
        yield EngineLimit(engine=name, happens=rounded, remedy="use transformers or vLLM for exact answers")
    if (longest := longest_text(config)) is not None:
        happens = f"answers wrongly on texts longer than {longest:,} tokens"
        yield EngineLimit(engine=name, happens=happens, remedy="use transformers or vLLM for longer texts")
