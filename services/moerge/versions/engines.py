"""The limits of engines that run a version, by its config.json, as measured by `make test-engines`."""

from collections.abc import Iterator, Mapping
from typing import Any

from moerge.export.llama_cpp import converter_form, longest_text, refusals
from moerge_proto.versions import EngineLimit

_BACKEND = "start it with --model-impl transformers"


def engine_limits(config: Mapping[str, Any]) -> list[EngineLimit]:
    """The limits of engines that run a version with this config.json; none for most versions."""
    return [*_vllm(config), *_llama_cpp(config)]


def _vllm(config: Mapping[str, Any]) -> Iterator[EngineLimit]:
    """vLLM 0.32: fields that its classes of Qwen2-MoE and Qwen3-MoE don't read, and its fixed rope."""
    model_type, rope, ignored = config.get("model_type"), config.get("rope_parameters") or {}, []
    if model_type == "qwen2_moe":
        if config["num_attention_heads"] * config["head_dim"] != config["hidden_size"]:
            ignored.append("`head_dim`, so it doesn't load this model or answers wrongly")
        if len(set(config.get("layer_types") or ())) > 1:
            ignored.append("the sliding windows, so it answers wrongly on texts that are longer than the window")
    if model_type == "qwen3_moe" and config.get("attention_bias"):
        ignored.append("the bias of the attention's output, so it answers wrongly")
    for field in ignored:
        yield EngineLimit(engine="vLLM", happens=f"ignores {field}", remedy=_BACKEND)
    if rope.get("rope_type") == "dynamic":
        longest = config["max_position_embeddings"]
        happens = f"answers wrongly on texts longer than {longest} tokens, with this model's dynamic rope"
        yield EngineLimit(engine="vLLM", happens=happens, remedy=f"start it with --max-model-len {longest}")


def _llama_cpp(config: Mapping[str, Any]) -> Iterator[EngineLimit]:
    """llama.cpp of October 2026: wrong answers, and limits of `moerge export`."""
    name = "llama.cpp"
    if refused := refusals(config):
        for happens in refused:
            yield EngineLimit(engine=name, happens=happens, remedy="use transformers or vLLM")
        return
    if converter_form(config).changed:
        happens = "answers wrongly if its converter alone writes the GGUF"
        yield EngineLimit(engine=name, happens=happens, remedy="write the GGUF with moerge export")
    if (longest := longest_text(config)) is not None:
        happens = f"answers wrongly on texts longer than {longest:,} tokens"
        yield EngineLimit(engine=name, happens=happens, remedy="use transformers or vLLM for longer texts")
