"""A published version: its routers, dtypes, names and index. tests/laws/test_law_6.py has what it computes."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from moerge.scoring.routers import forced, randomised, routers
from support.models import expert
from support.versions import ROWS, behind, body_file, loaded, logits, published


def test_the_routers_on_disk_are_those_that_decide(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    version = loaded(published(experts, tmp_path))
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
    dense = behind(experts[1], tmp_path / "body" / "body.safetensors", folder)
    version = loaded(folder)
    with forced(version, 1):
        torch.testing.assert_close(logits(version), logits(dense), atol=1e-4, rtol=0)


def test_names_and_index_are_what_the_engines_read(tmp_path: Path) -> None:
    """ARCHITECTURES: flat folder, model*.safetensors, per-expert w1 w2 w3, the index equal to the files' tensors."""
    experts = [expert(tmp_path / str(seed), seed=seed, tie_word_embeddings=True) for seed in (1, 2)]
    folder = published(experts, tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    result: dict[str, str] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            result |= dict.fromkeys(file.keys(), path.name)
    assert index["weight_map"] == result
    assert index["metadata"]["total_size"] == sum(_tensor_bytes(path) for path in folder.glob("*.safetensors"))
    assert sorted(set(result.values())) == [
        "model-body.safetensors", "model-expert-00000.safetensors", "model-expert-00001.safetensors",
        "model-head.safetensors", "model-router.safetensors",
    ]  # fmt: skip
    assert result["model.layers.2.block_sparse_moe.experts.1.w3.weight"] == "model-expert-00001.safetensors"
    assert result["lm_head.weight"] == "model-head.safetensors"
    config = json.loads((folder / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["head_dim"], config["rope_theta"]) == (False, 8, 10000.0)


def _tensor_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")


def test_cached_greedy_decoding_equals_that_of_the_dense_model(tmp_path: Path) -> None:
    dense = expert(tmp_path / "dense", seed=1)
    version = loaded(published([dense, dense], tmp_path))
    original = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    prompt = torch.tensor(ROWS[:1])[:, :8]
    generators: list[Any] = [version, original]
    texts = [model.generate(prompt, max_new_tokens=12, do_sample=False) for model in generators]
    assert torch.equal(*texts)


def test_the_average_body_is_the_mean_in_the_experts_dtype(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2, 3)]
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = []
    for folder in experts:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            tensors.append(file.get_tensor(name))
    with safe_open(body_file(experts, tmp_path / "body"), framework="pt") as file:
        names = set(file.keys())
        body = file.get_tensor(name)
    torch.testing.assert_close(body, torch.stack(tensors).double().mean(dim=0).float())
    assert not any("mlp" in item for item in names)
