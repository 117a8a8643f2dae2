"""BAM with shared keys and values in the stock class: its formula, equal experts, and training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM, JetMoeForCausalLM

from moerge.errors import IncompatibleExpertError, MoergeError
from moerge_lab.mixtures.jetmoe import jetmoe
from moerge_lab.recipes.mixtures import members
from moerge_lab.recipes.models import Loaded, active_parameters
from support.models import expert
from support.recipes import fleet, only

IDS = torch.arange(2 * 20).view(2, 20) * 7 % 250
PLAIN: dict[str, Any] = {"num_key_value_heads": 4}


@torch.inference_mode()
def logits(model: Any) -> Tensor:
    result: Tensor = model(input_ids=IDS).logits
    return result


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}},
        {"family": "mistral", "sliding_window": None, "head_dim": 16},
    ],
)
def test_equal_experts_are_the_dense_model(tmp_path: Path, settings: dict[str, Any]) -> None:
    dense = expert(tmp_path / "dense", 1, apart=0.02, **PLAIN, **settings)
    wanted = logits(AutoModelForCausalLM.from_pretrained(dense))
    mixed = jetmoe({"seed": dense, "a": dense, "b": dense}, seed=3)
    assert type(mixed) is JetMoeForCausalLM
    torch.testing.assert_close(logits(mixed), wanted, rtol=1e-5, atol=1e-5)


def test_the_formula_of_one_layer(tmp_path: Path) -> None:
    """A single token attends to itself alone, so its attention output is sum_i p_i O_i v, with the mean v."""
    folders = [expert(tmp_path / str(item), item, apart=0.02, num_hidden_layers=1, **PLAIN) for item in (1, 2)]
    one, two = (dict(AutoModelForCausalLM.from_pretrained(folder).state_dict()) for folder in folders)
    mixed = jetmoe({"a": folders[0], "b": folders[1]}, seed=0)
    routers = {name: item for name, item in mixed.state_dict().items() if "router" in name}

    def mean(name: str) -> Tensor:
        result: Tensor = (one[name] + two[name]) / 2
        return result

    def norm(x: Tensor, name: str) -> Tensor:
        y: Tensor = mean(name) * x / (x.square().mean() + 1e-6).sqrt()
        return y

    layer = "model.layers.0."
    x = mean("model.embed_tokens.weight")[7]
    u = norm(x, f"{layer}input_layernorm.weight")
    p = (routers[f"{layer}self_attention.experts.router.layer.weight"] @ u).softmax(0)
    v = mean(f"{layer}self_attn.v_proj.weight") @ u
    out = f"{layer}self_attn.o_proj.weight"
    x = x + p[0] * (one[out] @ v) + p[1] * (two[out] @ v)
    u = norm(x, f"{layer}post_attention_layernorm.weight")
    p = (routers[f"{layer}mlp.router.layer.weight"] @ u).softmax(0)
    for weight, own in zip(p, (one, two), strict=True):
        gate, up, down = (own[f"{layer}mlp.{item}_proj.weight"] for item in ("gate", "up", "down"))
        x = x + weight * (down @ (silu(gate @ u) * (up @ u)))
    expected = mean("lm_head.weight") @ norm(x, "model.norm.weight")
    with torch.inference_mode():
        torch.testing.assert_close(mixed(torch.tensor([[7]])).logits[0, 0], expected, rtol=1e-4, atol=1e-5)


def test_training_has_no_load_balancing_and_reaches_the_routers(tmp_path: Path) -> None:
    folders = {name: expert(tmp_path / name, item, apart=0.02, **PLAIN) for item, name in enumerate("ab")}
    model = jetmoe(folders, seed=0)
    model.train()
    given = model(input_ids=IDS, labels=IDS)
    following = torch.nn.functional.cross_entropy(given.logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    torch.testing.assert_close(given.loss, following)
    given.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_it_is_saved_loaded_and_generates_the_same(tmp_path: Path) -> None:
    folders = {name: expert(tmp_path / name, item, apart=0.02, **PLAIN) for item, name in enumerate("ab")}
    model: Any = jetmoe(folders, seed=0)
    model.save_pretrained(tmp_path / "saved")
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert torch.equal(logits(again), logits(model))
    wanted = model.generate(IDS, max_new_tokens=6, do_sample=False)
    assert torch.equal(again.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=False), wanted)


def test_the_recipe_trains_all_parameters_of_the_stock_class(tmp_path: Path) -> None:
    on = fleet(tmp_path, 2, **PLAIN)
    model = only("bam:shared-kv=1,train=96,batch=2", on)
    assert isinstance(model, Loaded)
    assert type(model.model) is JetMoeForCausalLM
    assert model.trained == (sum(parameter.numel() for parameter in model.model.parameters()), 96)
    untrained = jetmoe(members(on, {}), on.seed).state_dict()
    assert not [name for name, item in model.model.state_dict().items() if torch.equal(item, untrained[name])]
    with pytest.raises(MoergeError, match="as many attention experts as MLPs"):
        only("bam:shared-kv=1,routing=top2", on)


def test_all_parameters_but_the_embedding_are_active(tmp_path: Path) -> None:
    folders = {name: expert(tmp_path / name, item, **PLAIN) for item, name in enumerate("ab")}
    layer = 2 * (2 * 32 * 32 + 3 * 32 * 48) + 2 * 32 * 32 + 2 * 32 + 2 * 32  # experts, k and v, norms, zero biases
    routers = 2 * 2 * 32
    assert active_parameters(jetmoe(folders, seed=0)) == 300 * 32 + 32 + 3 * (layer + routers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "num_key_value_heads = 2, but JetMoE can hold only 4"),
        ({**PLAIN, "rms_norm_eps": 1e-5}, "rms_norm_eps = 1e-05"),
        ({**PLAIN, "family": "mistral", "sliding_window": 6}, "sliding_window = 6"),
        ({**PLAIN, "family": "qwen2"}, "model_type = 'qwen2'"),
    ],
)
def test_other_experts_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(IncompatibleExpertError, match=message) as refused:
        jetmoe({"a": expert(tmp_path / "a", 1, **settings)}, seed=0)
    assert "leave shared-kv out" in str(refused.value)
