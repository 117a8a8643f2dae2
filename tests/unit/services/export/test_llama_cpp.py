"""llama.cpp's limits, and the form in which its converter is right; `make test-engines` measures them."""

from typing import Any

import pytest
from transformers import AutoConfig

from moerge.export.llama_cpp import Form, converter_form, longest_text, refusals
from moerge.models.config import published_config
from moerge.models.families.hosts import MIXTRAL, QWEN2_MOE
from moerge.models.families.registry import family_of
from support.models import SMALL

WINDOW = {"use_sliding_window": True, "sliding_window": 8}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 4.0, 5.0], "original_max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def published(family: str, **settings: Any) -> dict[str, Any]:
    """config.json of a version of such experts."""
    config = AutoConfig.for_model(family, **{**SMALL, **settings})
    return published_config(family_of(config), config, 3, 1, "float32", config.vocab_size, tied=False)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("llama", {"head_dim": 16, "rope_parameters": LLAMA3}),
        ("mistral", {"sliding_window": 256}),
        ("mistral", {"sliding_window": None}),
        ("phi3", {}),
        ("qwen3", {"head_dim": 16}),
        ("helium", {"head_dim": 8}),
    ],
)
def test_versions_that_llama_cpp_reads_right_keep_their_form(family: str, settings: dict[str, Any]) -> None:
    config = published(family, **settings)
    assert (refusals(config), longest_text(config)) == ([], None)
    assert not converter_form(config).changed


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("olmo2", {}, "no FlexOlmo"),
        ("llama", {"hidden_act": "gelu"}, "silu"),
        ("llama", {"attention_bias": True}, "Mellum"),
        ("qwen3", {"attention_bias": True}, "bias"),
        ("qwen3", {"rope_parameters": LLAMA3}, "llama3"),
        ("mistral", {"sliding_window": 8, "head_dim": 16}, "window"),
        (
            "llama",
            {"rope_parameters": LONGROPE | {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}, "head_dim": 16},
            "longrope",
        ),
    ],
)
def test_versions_without_an_equivalent_form_are_refused(family: str, settings: dict[str, Any], reason: str) -> None:
    config = published(family, **settings)
    assert [reason in refusal for refusal in refusals(config)] == [True]


def test_qwen2_becomes_mixtral_without_its_shared_expert() -> None:
    form = converter_form(published("qwen2"))
    assert (form.config["architectures"], form.renamed) == (["MixtralForCausalLM"], (QWEN2_MOE, MIXTRAL))
    assert not form.sinks
    assert (form.config["num_local_experts"], form.config["intermediate_size"]) == (3, SMALL["intermediate_size"])
    assert "num_experts" not in form.config


@pytest.mark.parametrize(
    ("family", "settings", "windows"),
    [
        ("mistral", {"sliding_window": 8}, [True, True, True]),
        ("phi3", {"sliding_window": 8}, [True, True, True]),
        ("qwen2", {**WINDOW, "max_window_layers": 1}, [False, True, True]),
    ],
)
def test_windows_become_those_of_granite_with_sinks(family: str, settings: dict[str, Any], windows: list[bool]) -> None:
    form = converter_form(published(family, **settings))
    assert (form.config["architectures"], form.sinks) == (["GraniteMoeSWAForCausalLM"], True)
    assert (form.config["sliding_window"], form.config["logits_scaling"]) == (8, 1.0)
    assert [item == "sliding_attention" for item in form.config["layer_types"]] == windows


def test_longrope_becomes_short_divisors_and_a_score_factor() -> None:
    config = published("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=64)
    form = converter_form(config)
    assert form.frequencies == pytest.approx((1.0, 1.5, 2.0, 2.5))
    assert form.config["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e4}
    assert form.config["attention_multiplier"] == pytest.approx((1 + 1 / 3) / 8**0.5)  # 256 = 64 x 4: 1 + ln 4 / ln 64
    assert (form.config["max_position_embeddings"], form.config["sliding_window"]) == (64, 64)
    assert longest_text(config) == 64


def test_yarn_settings_become_divisors_and_a_score_factor() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    assert not converter_form(published("llama", rope_parameters=yarn)).changed
    form = converter_form(published("llama", rope_parameters={**yarn, "attention_factor": 2.0}))
    assert form.config["attention_multiplier"] == pytest.approx(4 / 8**0.5)
    assert (form.frequencies[0], form.frequencies[-1]) == pytest.approx((1, 4))


def test_a_dynamic_rope_is_exact_up_to_the_context() -> None:
    config = published("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    assert converter_form(config) == Form({**config, "sliding_window": None})
    assert longest_text(config) == 256


@pytest.mark.parametrize(("family", "renamed"), [("phi3", None), ("glm", (QWEN2_MOE, MIXTRAL))])
def test_a_partial_rope_becomes_divisors_without_a_limit(family: str, renamed: object) -> None:
    config = published(family, partial_rotary_factor=0.5, head_dim=8)
    form = converter_form(config)
    assert form.frequencies == pytest.approx((1.0, 10.0, 1e30, 1e30))
    assert (form.config["attention_multiplier"], form.renamed) == (pytest.approx(8**-0.5), renamed)
    assert (form.config["max_position_embeddings"], longest_text(config)) == (256, None)
