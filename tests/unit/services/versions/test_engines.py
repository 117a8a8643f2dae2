"""The limits of engines follow from config.json; `make test-engines` measures them."""

from typing import Any

import pytest
from transformers import AutoConfig

from moerge.models.config import published_config
from moerge.models.families.registry import family_of
from moerge.versions.engines import engine_limits
from support.models import small_settings

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
MINISTRAL = {**YARN, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}
WINDOWS = {"use_sliding_window": True, "sliding_window": 8}


def limits(family: str, *, tied: bool = False, **settings: Any) -> list[tuple[str, str]]:
    """Engine and fault of each limit of a version of such experts."""
    config = AutoConfig.for_model(family, **small_settings(family, **settings))
    published = published_config(family_of(config), config, 3, 1, "float32", config.vocab_size, tied=tied)
    return [(limit.engine, limit.happens) for limit in engine_limits(published)]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("llama", {"head_dim": 16}),
        ("mistral", {"sliding_window": 8}),
        ("phi3", {"sliding_window": 8}),
        ("qwen2", {}),
        ("qwen2", {**WINDOWS, "max_window_layers": 0}),
        ("qwen2", {**WINDOWS, "max_window_layers": 3}),
        ("qwen3", {"head_dim": 16}),
        ("olmo2", {"attention_bias": True}),
        ("glm", {"head_dim": 8}),
        ("phi3", {"partial_rotary_factor": 0.5}),
        ("llama", {"attention_bias": True}),
        ("smollm3", {}),
        ("granite", {}),
        ("gemma4_text", {}),
        ("gemma3_text", {}),
    ],
)
def test_versions_that_vllm_runs_have_no_limits_there(family: str, settings: dict[str, Any]) -> None:
    assert "vLLM" not in dict(limits(family, **settings))


def test_llama_cpp_has_lfm2_whose_head_is_the_embedding() -> None:
    assert "llama.cpp" not in dict(limits("lfm2", tied=True))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("mistral", {"sliding_window": None}),
        ("phi3", {}),
        ("qwen3", {"head_dim": 16}),
        ("helium", {}),
        ("granite", {}),
    ],
)
def test_versions_that_engines_run_have_no_limits(family: str, settings: dict[str, Any]) -> None:
    assert limits(family, **settings) == []


@pytest.mark.parametrize(
    ("family", "settings", "engine", "fault"),
    [
        ("qwen2", {"head_dim": 16}, "vLLM", "head_dim"),
        ("seed_oss", {"head_dim": 8, "attention_bias": False}, "vLLM", "qkv_bias"),
        ("qwen2", {**WINDOWS, "max_window_layers": 1}, "vLLM", "windows"),
        ("qwen3", {"head_dim": 16, "attention_bias": True}, "vLLM", "bias "),
        ("qwen3", {"head_dim": 16, "attention_bias": True}, "llama.cpp", "bias "),
        ("qwen2", {}, "llama.cpp", "converter alone"),
        ("mistral", {"sliding_window": 8}, "llama.cpp", "converter alone"),
        ("olmo2", {}, "llama.cpp", "FlexOlmo"),
        ("glm", {"head_dim": 8}, "llama.cpp", "converter alone"),
        ("glm", {"head_dim": 8, "rope_parameters": YARN}, "vLLM", "attention_factor"),
        ("smollm3", {}, "llama.cpp", "Mellum"),
        ("smollm3", {}, "every engine", "float16"),
        ("llama", {"attention_bias": True}, "every engine", "float16"),
        ("ministral3", {"rope_parameters": MINISTRAL, "head_dim": 8}, "every engine", "longer than 64 tokens"),
        ("granite", {"head_dim": 16}, "vLLM", "head_dim"),
        ("granite", {"attention_bias": True}, "vLLM", "biases"),
        ("gemma", {"head_dim": 8}, "vLLM", "hidden_act"),
        ("granite", {"head_dim": 16}, "llama.cpp", "only heads"),
        ("gemma3_text", {}, "every engine", "projections of values"),
        ("gemma3_text", {}, "llama.cpp", "a proportional rope"),
        ("gemma4_text", {}, "llama.cpp", "rounds activations"),
        ("qwen3_5_text", {}, "vLLM", "no float32 kernel"),
        ("qwen3_5_text", {}, "llama.cpp", "if its converter alone"),
        ("lfm2", {}, "vLLM", "as it does for dense LFM2"),
        ("lfm2", {}, "llama.cpp", "LFM2-MoE"),
        ("nemotron_h", {}, "vLLM", "experts without a gate"),
        ("nemotron_h", {}, "llama.cpp", "rounds state spaces"),
        ("llama", {"rope_parameters": DYNAMIC}, "vLLM", "longer than 256 tokens"),
        ("llama", {"rope_parameters": DYNAMIC}, "llama.cpp", "longer than 256 tokens"),
    ],
)
def test_a_setting_that_an_engine_ignores_is_a_limit(
    family: str, settings: dict[str, Any], engine: str, fault: str
) -> None:
    assert [fault in happens for name, happens in limits(family, **settings) if name == engine] == [True]


def test_windows_of_qwen3_are_mellum_s_and_its_norms_are_its_own() -> None:
    settings: dict[str, Any] = {**WINDOWS, "max_window_layers": 1}
    assert limits("qwen3", **settings) == []
    for further in ({"attention_bias": True}, {"rope_parameters": YARN}):
        assert [name for name, _ in limits("qwen3", **settings, **further)] == ["llama.cpp"]


def test_a_context_that_is_not_cut_has_no_limit() -> None:
    assert "every engine" not in dict(limits("ministral3", head_dim=8))
