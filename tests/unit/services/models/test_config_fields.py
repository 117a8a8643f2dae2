"""Every field of a family's config: another value is refused if it changes a logit, and taken if it changes none."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from moerge.errors import IncompatibleExpertError
from moerge.models.config import replaced_settings, require_same_config, settings_of
from moerge.models.families.registry import FAMILIES
from support.models import small_settings

CONTEXT, WINDOW = 32, 8
OF_ALL = PretrainedConfig().to_dict().keys() - {"bos_token_id", "eos_token_id", "pad_token_id"}
"""Fields of every config, such as of labels; none is a model's."""
OF_TENSORS = "tie_word_embeddings"
"""Whether a head is tied follows from the tensors."""
BASE = {"rope_theta": 1e4, "rope_type": "default"}
YARN = {**BASE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
LONG: dict[str, Any] = {
    "short_factor": [1.0] * 16,
    "long_factor": [2.0] * 16,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
}
ROPES: list[dict[str, Any]] = [
    {**BASE, "rope_theta": 2e4},
    {**BASE, "type": "default"},
    {**BASE, "rope_theta": 10_000},
    {**BASE, "partial_rotary_factor": 1.0},
    {**BASE, "partial_rotary_factor": 0.5},
    {**BASE, "rope_type": "linear", "factor": 1.0},
    {**BASE, "rope_type": "linear", "factor": 2.0},
    {**BASE, "rope_type": "dynamic", "factor": 2.0},
    {**BASE, "rope_type": "llama3", **LLAMA3},
    YARN,
]
SPELLINGS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    (YARN, {**YARN, "beta_fast": 32, "beta_slow": 1.0, "truncate": True, "attention_factor": None}, True),
    (YARN, {**YARN, "attention_factor": 0.1 * 1.3862943611198906 + 1}, True),
    (YARN, {**YARN, "mscale": 1.0, "mscale_all_dim": 0.0, "mrope_section": [1]}, True),
    (YARN, {**YARN, "type": "yarn", "long_factor": [2.0]}, True),
    (YARN, {**YARN, "beta_slow": 0.1}, False),
    (YARN, {**YARN, "attention_factor": 1.0}, False),
    (YARN, {**YARN, "original_max_position_embeddings": 16}, False),
    ({**BASE, "rope_type": "llama3", **LLAMA3}, {**BASE, "rope_type": "llama3", **LLAMA3, "factor": 4.0}, False),
    ({**BASE, "rope_type": "longrope", **LONG}, {**BASE, "rope_type": "longrope", **LONG, "truncate": True}, True),
    ({**BASE, "rope_type": "longrope", **LONG}, {**BASE, "rope_type": "longrope", **LONG, "factor": 2.0}, False),
]
"""One rope, another spelling or another rope, and whether both are the same."""
OTHERS: dict[str, list[Any]] = {
    **{f"{name}_token_id": [None, 7] for name in ("bos", "eos", "pad")},
    "time_step_limit": [[0.0, 1.0]],
    "dtype": [],
    "output_router_logits": [],  # of experts, which a dense model hasn't
    "per_layer_config": [],
}
"""Field -> other values, where they don't follow from its own."""


def settings(family: str) -> dict[str, Any]:
    """Those of a tiny model, with a context and windows that its text exceeds."""
    result = small_settings(family, max_position_embeddings=CONTEXT)
    if family in ("mistral", "phi3", "ministral3", "cwm", "gemma3_text", "gemma4_text", "gemma4_unified_text"):
        result["sliding_window"] = WINDOW
    return result


def model(config: PretrainedConfig) -> PreTrainedModel:
    result: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    result.eval()
    return result


@torch.no_grad()
def logits(of: PreTrainedModel) -> Tensor:
    """Logits by two kinds of attention, because either ignores a field that the other reads."""
    result, ids = list[Tensor](), torch.arange(3 * CONTEXT).view(1, -1) * 7 % 256
    for kind in ("eager", "sdpa"):
        of.set_attn_implementation(kind)
        result.append(of(ids, use_cache=False).logits)
    return torch.stack(result)


@cache
def whole(family: str) -> tuple[PretrainedConfig, Mapping[str, Tensor], Tensor]:
    """A tiny model's config, random tensors and logits."""
    config = AutoConfig.for_model(family, **settings(family))
    own, generator = model(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return config, own.state_dict(), logits(own)


def others(name: str, value: Any) -> list[Any]:
    """Other values of a field."""
    if name in OTHERS:
        return OTHERS[name]
    if name == "rope_parameters" and value:
        nested = any(isinstance(item, Mapping) for item in value.values())
        return [dict.fromkeys(value, rope) if nested else {**value, **rope} for rope in ROPES]
    if name.endswith(("_act", "_activation")):
        return ["gelu", *(["swish"] if value == "silu" else [])]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value // 2] if value > 1 else [value + 1]
    if isinstance(value, float):
        return [1.5 * value + 0.1]
    if isinstance(value, list):
        return [value[::-1]]
    return [1, True] if value is None else []


def alike(family: str, changed: PretrainedConfig) -> bool | None:
    """Tell whether a model with another config and the same tensors has the same logits; None: there is none."""
    _, tensors, expected = whole(family)
    try:
        other = model(changed)
        other.load_state_dict(tensors)
        return torch.allclose(logits(other), expected, atol=1e-5)
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError):
        return None


def fields(family: str) -> Iterator[tuple[str, Any, PretrainedConfig]]:
    """Each field with each other value, and the config with it."""
    given = settings(family)
    for name, value in whole(family)[0].to_dict().items():
        if name == OF_TENSORS or (name in OF_ALL and name not in given):
            continue
        for other in others(name, value):
            try:
                yield name, other, AutoConfig.for_model(family, **{**given, name: other})
            except (ValueError, TypeError, KeyError, ZeroDivisionError, StrictDataclassError):
                continue  # transformers refuses it


def is_taken(family: str, changed: PretrainedConfig) -> bool:
    try:
        require_same_config(whole(family)[0], changed, "the expert", "same")
    except IncompatibleExpertError:
        return False
    return True


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_field_is_refused_exactly_if_a_logit_depends_on_it(family: str) -> None:
    taken = {(name, str(other)): (is_taken(family, changed), changed) for name, other, changed in fields(family)}
    found = {place: alike(family, changed) for place, (_, changed) in taken.items()}
    wrong = {place: found[place] for place, (is_taken, _) in taken.items() if is_taken != bool(found[place])}
    assert not wrong
    assert True in found.values()
    assert False in found.values()


@pytest.mark.parametrize(("one", "other", "is_same"), SPELLINGS)
def test_ropes_are_compared_by_their_frequencies(one: dict[str, Any], other: dict[str, Any], is_same: bool) -> None:
    given = {**settings("llama"), "head_dim": 2 * len(LONG["short_factor"])}
    made = [AutoConfig.for_model("llama", **{**given, "rope_parameters": rope}) for rope in (one, other)]
    first, second = map(model, made)
    second.load_state_dict(first.state_dict())
    assert torch.allclose(logits(first), logits(second), atol=1e-6) == is_same
    assert (settings_of(made[0]) == settings_of(made[1])) == is_same


def test_a_context_may_differ_unless_a_rope_depends_on_it() -> None:
    def named(*contexts: int, **rope: object) -> list[dict[str, Any]]:
        given = {**settings("llama"), "rope_parameters": {**BASE, **rope}}
        return [settings_of(AutoConfig.for_model("llama", **{**given, "max_position_embeddings": n})) for n in contexts]

    assert len({str(item) for item in named(32, 64)}) == 1
    assert len({str(item) for item in named(32, 64, rope_type="dynamic", factor=2.0)}) == 2


def test_the_fields_that_a_version_has_from_the_first_are_named() -> None:
    given = settings("qwen2")
    seed = AutoConfig.for_model("qwen2", **given)
    trained = AutoConfig.for_model(
        "qwen2", **{**given, "bos_token_id": None, "pad_token_id": 7, "max_window_layers": 2}
    )
    assert replaced_settings(seed, trained) == ["bos_token_id", "max_window_layers", "pad_token_id"]
    assert replaced_settings(seed, seed) == []
