"""The limits of engines follow from config.json; `make test-engines` measures them."""

from typing import Any

import pytest
from transformers import AutoConfig

from moerge.models.config import published_config
from moerge.models.families.registry import family_of
from moerge.versions.engines import engine_limits
from support.models import SMALL

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
WINDOWS = {"use_sliding_window": True, "sliding_window": 8}


def limits(family: str, **settings: Any) -> list[tuple[str, str]]:
    """Engine and fault of each limit of a version of such experts."""
    config = AutoConfig.for_model(family, **{**SMALL, **settings})
    published = published_config(family_of(config), config, 3, 1, "float32", config.vocab_size, tied=False)
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
    ],
)
def test_versions_that_vllm_runs_have_no_limits_there(family: str, settings: dict[str, Any]) -> None:
    assert "vLLM" not in dict(limits(family, **settings))


@pytest.mark.parametrize(
    ("family", "settings"),
    [("llama", {}), ("mistral", {"sliding_window": None}), ("phi3", {}), ("qwen3", {"head_dim": 16})],
)
def test_versions_that_engines_run_have_no_limits(family: str, settings: dict[str, Any]) -> None:
    assert limits(family, **settings) == []


@pytest.mark.parametrize(
    ("family", "settings", "engine", "fault"),
    [
        ("qwen2", {"head_dim": 16}, "vLLM", "head_dim"),
        ("qwen2", {**WINDOWS, "max_window_layers": 1}, "vLLM", "windows"),
        ("qwen3", {"head_dim": 16, "attention_bias": True}, "vLLM", "bias "),
        ("qwen3", {"head_dim": 16, "attention_bias": True}, "llama.cpp", "bias "),
        ("qwen2", {}, "llama.cpp", "converter alone"),
        ("mistral", {"sliding_window": 8}, "llama.cpp", "converter alone"),
        ("olmo2", {}, "llama.cpp", "FlexOlmo"),
        ("llama", {"rope_parameters": DYNAMIC}, "vLLM", "longer than 256 tokens"),
        ("llama", {"rope_parameters": DYNAMIC}, "llama.cpp", "longer than 256 tokens"),
    ],
)
def test_a_setting_that_an_engine_ignores_is_a_limit(
    family: str, settings: dict[str, Any], engine: str, fault: str
) -> None:
    assert [fault in happens for name, happens in limits(family, **settings) if name == engine] == [True]
