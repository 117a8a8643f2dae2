"""Law 6: the output is a stock model, exactly equivalent to its parts."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.scoring.routers import forced
from support.models import DISTINCT, GEMMA4_SMALL, allowed, expert
from support.versions import behind, loaded, logits, published
from support.wrappers import wrapper

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 4.0, 5.0], "factor": 2.0, "original_max_position_embeddings": 16,
}  # fmt: skip
PARTIAL_LONGROPE = {**LONGROPE, "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
MIXED = ["full_attention", "sliding_attention", "full_attention"]
GRANITE: dict[str, object] = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.75, "logits_scaling": 2.0,
    "attention_bias": True, "tie_word_embeddings": True,
}  # fmt: skip
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
KINDS: list[tuple[str, dict[str, object]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"head_dim": 16}),
    ("llama", {"hidden_act": "gelu", "rms_norm_eps": 1e-3}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": LINEAR}),
    ("llama", {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": DYNAMIC}),
    ("llama", {"rope_parameters": LONGROPE}),
    ("internlm3", {"head_dim": 8, "rope_parameters": DYNAMIC}),
    ("iquestcoder", {"head_dim": 16}),
    ("mistral", {"sliding_window": 8}),
    ("mistral", {"sliding_window": None, "tie_word_embeddings": True}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3", {"head_dim": 16}),
    ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 16, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}),
    ("seed_oss", {"head_dim": 16}),
    ("seed_oss", {"head_dim": 8, "attention_bias": False, "tie_word_embeddings": True, "rope_parameters": YARN}),
    ("olmo2", {}),
    ("olmo2", {"attention_bias": True, "tie_word_embeddings": True}),
    ("granite", {}),
    ("granite", GRANITE),
    ("gemma", {}),
    ("gemma", {"attention_bias": True, "tie_word_embeddings": False}),
    ("gemma4_text", {}),
    ("gemma4_text", {"attention_k_eq_v": False, "final_logit_softcapping": None, "tie_word_embeddings": True}),
    ("gemma4_text", GEMMA4_SMALL),
    ("gemma3_text", {"initializer_range": 0.1}),
    ("gemma3_text", {"initializer_range": 0.1, "tie_word_embeddings": True, "layer_types": ["full_attention"] * 3}),
    ("gemma4_unified_text", {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
    ("phi3", {"sliding_window": 8}),
    ("phi3", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16}),
    ("phi3", {"partial_rotary_factor": 0.5}),
    (
        "phi3",
        {"partial_rotary_factor": 0.5, "rope_parameters": PARTIAL_LONGROPE, "original_max_position_embeddings": 16},
    ),
    ("glm", {}),
    ("glm", {"attention_bias": False, "tie_word_embeddings": True, "rope_parameters": YARN}),
    ("helium", {}),
    ("llama", {"attention_bias": True}),
    ("llama", {"attention_bias": True, "head_dim": 16, "rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    ("cwm", {"sliding_window": 8, "layer_types": MIXED, "rope_parameters": LINEAR}),
    ("qwen3", {"head_dim": 16, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("smollm3", {"tie_word_embeddings": True}),
    ("smollm3", {"attention_bias": True, "rope_parameters": YARN}),
    ("ministral3", {"sliding_window": 8}),
    ("qwen3_5_text", {}),
    ("qwen3_5_text", {"rope_parameters": HALF, "attention_bias": True, "tie_word_embeddings": True}),
    ("granitemoehybrid", {"position_embedding_type": None, "mamba_conv_bias": True}),
    ("granitemoehybrid", {"layer_types": ["full_attention"] * 3, "tie_word_embeddings": True}),
    ("lfm2", {}),
    ("nemotron_h", {"use_bias": True}),
    ("lfm2", {"block_auto_adjust_ff_dim": False, "conv_bias": True, "tie_word_embeddings": True}),
]


@pytest.mark.parametrize(("family", "settings", "top_k"), [(*kind, allowed(kind[0])[-1]) for kind in KINDS])
def test_law_6_equal_experts_give_logits_of_the_dense_model(
    tmp_path: Path, family: str, settings: dict[str, object], top_k: int
) -> None:
    dense = expert(tmp_path / "dense", seed=1, family=family, **settings)
    version = loaded(published([dense, dense], tmp_path, top_k))
    original = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    torch.testing.assert_close(logits(version), logits(original), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "settings"), {kind[0]: kind for kind in reversed(KINDS) if kind[0] in DISTINCT}.values()
)
def test_law_6_forced_expert_gives_logits_of_body_mlps_and_head(
    tmp_path: Path, family: str, settings: dict[str, object]
) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed, family=family, **settings) for seed in (1, 2)]
    folder = published(experts, tmp_path)
    version, seen = loaded(folder), []
    for slot, own in enumerate(experts):
        dense = behind(own, tmp_path / "body" / "body.safetensors", folder)
        with forced(version, slot):
            seen.append(logits(version))
        torch.testing.assert_close(seen[-1], logits(dense), atol=1e-4, rtol=0)
    assert not torch.allclose(seen[0], seen[1], atol=1e-3)


@pytest.mark.parametrize("kind", ["mistral3", "qwen2_5_vl", "qwen3_vl"])
def test_law_6_equal_experts_in_wrappers_give_logits_of_the_wrapper(tmp_path: Path, kind: str) -> None:
    original = wrapper(tmp_path / "dense", kind)
    version = loaded(published([tmp_path / "dense"] * 3, tmp_path, top_k=2))
    torch.testing.assert_close(logits(version), logits(original), atol=1e-4, rtol=0)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_law_6_forced_expert_has_all_weight_at_any_top_k(tmp_path: Path, top_k: int) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2, 3)]
    folder = published(experts, tmp_path, top_k)
    version = loaded(folder)
    for slot, own in enumerate(experts):
        with forced(version, slot):
            result = logits(version)
        dense = behind(own, tmp_path / "body" / "body.safetensors", folder)
        torch.testing.assert_close(result, logits(dense), atol=1e-4, rtol=0)
