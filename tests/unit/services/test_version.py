"""Law 6: a version is a stock checkpoint, and computes exactly what its parts say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from moerge.models.dense import domain_model
from moerge.models.families import FAMILIES
from moerge.scoring.routers import forced, randomised, routers
from support.models import expert
from support.versions import ROWS, logits, published, trunk_file

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
KINDS: list[tuple[str, dict[str, object]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"head_dim": 16}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": LINEAR}),
    ("llama", {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": DYNAMIC}),
    ("llama", {"rope_parameters": LONGROPE}),
    ("mistral", {"sliding_window": 8}),
    ("mistral", {"sliding_window": None, "tie_word_embeddings": True}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3", {"head_dim": 16}),
    ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 16, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}),
    ("olmo2", {}),
    ("olmo2", {"attention_bias": True, "tie_word_embeddings": True}),
    ("phi3", {"sliding_window": 8}),
    ("phi3", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16}),
]


def load(folder: Path, family: str = "llama") -> PreTrainedModel:
    """Loads as a consumer does, and requires that nothing is missing: a missing router would only warn."""
    answer: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    loaded: PreTrainedModel = answer[0]
    assert not any(answer[1].values()), answer[1]
    assert type(loaded).__name__ == FAMILIES[family].published_class
    return loaded


@pytest.mark.parametrize(("family", "settings"), KINDS)
@pytest.mark.parametrize("top_k", [1, 2])
def test_law_6_with_equal_experts_logits_equal_the_dense_model_s(
    tmp_path: Path, family: str, settings: dict[str, object], top_k: int
) -> None:
    dense = expert(tmp_path / "dense", seed=1, family=family, **settings)
    version = load(published([dense, dense, dense], tmp_path, top_k), family)
    original = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    torch.testing.assert_close(logits(version), logits(original), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("family", "settings"), KINDS)
def test_law_6_forced_to_one_expert_logits_equal_trunk_and_its_mlps(
    tmp_path: Path, family: str, settings: dict[str, object]
) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed, family=family, **settings) for seed in (1, 2, 3)]
    version = load(published(experts, tmp_path), family)
    seen = []
    for slot, folder in enumerate(experts):
        dense, _ = domain_model(folder, tmp_path / "trunk" / "trunk.safetensors")
        with forced(version, slot):
            seen.append(logits(version))
        torch.testing.assert_close(seen[-1], logits(dense), atol=1e-4, rtol=0)
    assert not torch.allclose(seen[0], seen[1], atol=1e-3)


def test_the_routers_on_disk_are_those_that_decide(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    version = load(published(experts, tmp_path))
    before = logits(version)
    with safe_open(tmp_path / "version" / "model-router.safetensors", framework="pt") as file:
        for layer, router in enumerate(routers(version)):
            weight = file.get_tensor(f"model.layers.{layer}.block_sparse_moe.gate.weight")
            assert torch.equal(router.get_parameter("weight"), weight)
            torch.testing.assert_close(weight.norm(dim=1), torch.ones(2))
    with randomised(version, seed=1):
        assert not torch.allclose(logits(version), before, atol=1e-3)
    assert torch.equal(logits(version), before)


def test_an_expert_of_mixed_dtypes_keeps_them(tmp_path: Path) -> None:
    """Norms in float32, the rest in bfloat16: each tensor is published as it was, and the version loads."""
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    for folder in experts:
        path = folder / "model.safetensors"
        tensors = {name: t if "norm" in name else t.bfloat16() for name, t in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    folder = published(experts, tmp_path)
    kept = {name: tensor.dtype for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert {dtype for name, dtype in kept.items() if "norm" in name} == {torch.float32}
    assert {dtype for name, dtype in kept.items() if "norm" not in name} == {torch.bfloat16}
    dense, _ = domain_model(experts[1], tmp_path / "trunk" / "trunk.safetensors")
    version = load(folder)
    with forced(version, 1):
        torch.testing.assert_close(logits(version), logits(dense), atol=1e-4, rtol=0)


def test_names_and_index_are_what_the_engines_read(tmp_path: Path) -> None:
    """ARCHITECTURES: flat folder, model*.safetensors, per-expert w1 w2 w3, the index equal to the files' tensors."""
    experts = [expert(tmp_path / str(seed), seed=seed, tie_word_embeddings=True) for seed in (1, 2)]
    folder = published(experts, tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found: dict[str, str] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path.name)
    assert index["weight_map"] == found
    assert index["metadata"]["total_size"] == sum(_tensor_bytes(path) for path in folder.glob("*.safetensors"))
    assert sorted(set(found.values())) == [
        "model-expert-00000.safetensors", "model-expert-00001.safetensors", "model-router.safetensors",
        "model-trunk-added.safetensors", "model-trunk.safetensors",
    ]  # fmt: skip
    assert found["model.layers.2.block_sparse_moe.experts.1.w3.weight"] == "model-expert-00001.safetensors"
    assert found["lm_head.weight"] == "model-trunk-added.safetensors"
    config = json.loads((folder / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["head_dim"], config["rope_theta"]) == (False, 8, 10000.0)


def _tensor_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")


def test_greedy_decoding_through_the_cache_equals_the_dense_model_s(tmp_path: Path) -> None:
    dense = expert(tmp_path / "dense", seed=1)
    version = load(published([dense, dense], tmp_path))
    original = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    prompt = torch.tensor(ROWS[:1])[:, :8]
    generators: list[Any] = [version, original]
    texts = [model.generate(prompt, max_new_tokens=12, do_sample=False) for model in generators]
    assert torch.equal(*texts)


def test_the_average_trunk_is_the_mean_in_the_experts_dtype(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2, 3)]
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = []
    for folder in experts:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            tensors.append(file.get_tensor(name))
    with safe_open(trunk_file(experts, tmp_path / "trunk"), framework="pt") as file:
        names = set(file.keys())
        trunk = file.get_tensor(name)
    torch.testing.assert_close(trunk, torch.stack(tensors).double().mean(dim=0).float())
    assert not any("mlp" in each for each in names)
