"""BAM: its formula, equal experts, and the same logits after a load and with a cache."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

import moerge_lab.mixtures  # registers the classes
from moerge.errors import IncompatibleExpertError
from moerge_lab.mixtures.bam import Bam, Experts
from moerge_lab.mixtures.base import Mixture
from support.models import expert

IDS = torch.arange(2 * 20).view(2, 20) * 7 % 250
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "mistral, short window": ("mistral", {"sliding_window": 6}),
    "qwen2, window in some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 8}),
    "phi3": ("phi3", {}),
    "olmo2": ("olmo2", {}),
}


def folders(place: Path, family: str = "llama", **settings: Any) -> dict[str, Path]:
    """A seed model and two experts."""
    names = ("seed", "a", "b")
    return {name: expert(place / name, item, family, apart=0.02, **settings) for item, name in enumerate(names)}


@torch.inference_mode()
def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    result: Tensor = model(input_ids=ids).logits
    return result


def stirred(model: Mixture, deviation: float = 0.1) -> Mixture:
    """Noise in the parameters that training would move."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.added().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=deviation)
    return model


def generated(model: Any, ids: Tensor = IDS, **settings: Any) -> Tensor:
    """Six greedy tokens behind the text."""
    result: Tensor = model.generate(ids, max_new_tokens=6, do_sample=False, **settings)
    return result[:, -6:]


def require_same_after_a_load(model: Mixture, folder: Path) -> None:
    """Logits and greedy tokens are the same after a load; tokens also without a cache, and behind padding."""
    model.save_pretrained(folder)
    again: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(again) is type(model)
    assert torch.equal(logits(again), logits(model))
    wanted, padded = generated(model), torch.cat([torch.zeros_like(IDS[:, :3]), IDS], 1)
    mask = (torch.arange(23) >= 3).expand(2, 23).long()
    assert torch.equal(generated(again), wanted)
    assert torch.equal(generated(again, use_cache=False), wanted)
    assert torch.equal(generated(again, padded, attention_mask=mask), wanted)


class Multiplied(nn.Module):
    """x -> factor x."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        # logits (2 ln 2, 0, ln 2) weight x, 10 x and 100 x with 4/7, 1/7 and 2/7
        (0, (4 * 1 + 1 * 10 + 2 * 100) / 7),
        (2, (4 * 1 + 2 * 100) / 6),
        (1, 1.0),
    ],
)
def test_outputs_are_weighted_by_softmax_of_the_largest_logits(k: int, expected: float) -> None:
    block = Experts([Multiplied(1.0), Multiplied(10.0), Multiplied(100.0)], 2, k, adapters=False)
    block.router.weight.data = torch.log(torch.tensor(2.0)) * torch.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(block.mixed(torch.tensor([[[1.0, 3.0]]])), torch.tensor([[[expected, 3 * expected]]]))


def test_adapters_map_each_expert_s_output() -> None:
    block = Experts([Multiplied(1.0), Multiplied(10.0)], 2, 0, adapters=True)
    assert block.adapters is not None
    block.router.weight.data.zero_()
    swap, double = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), 2 * torch.eye(2)
    for adapter, weight in zip(block.adapters, (swap, double), strict=True):
        adapter.weight.data = weight
    # half of (3, 1) and half of 2 x (10, 30)
    torch.testing.assert_close(block.mixed(torch.tensor([[[1.0, 3.0]]])), torch.tensor([[[11.5, 30.5]]]))


@pytest.mark.parametrize("name", FAMILIES)
def test_equal_experts_are_the_dense_model(tmp_path: Path, name: str) -> None:
    family, settings = FAMILIES[name]
    dense = expert(tmp_path / "dense", 1, family, apart=0.02, **settings)
    wanted = logits(AutoModelForCausalLM.from_pretrained(dense))
    mixed = Bam.of({"seed": dense, "a": dense, "b": dense}, seed=3)
    torch.testing.assert_close(logits(mixed), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_saved_loaded_and_generates_the_same(tmp_path: Path, name: str) -> None:
    family, settings = FAMILIES[name]
    model = stirred(Bam.of(folders(tmp_path, family, **settings), 0, 2, adapters=True))
    require_same_after_a_load(model, tmp_path / "saved")


def test_experts_of_another_architecture_are_named(tmp_path: Path) -> None:
    members = folders(tmp_path) | {"c": expert(tmp_path / "c", 1, intermediate_size=64)}
    with pytest.raises(IncompatibleExpertError, match=r"c differs.*intermediate_size is 64, not 48"):
        Bam.of(members, 0)


def test_active_parameters_are_those_of_a_token(tmp_path: Path) -> None:
    attention, mlp, shared = 2 * 32 * 32 + 2 * 32 * 16, 3 * 32 * 48, 300 * 32 + 32
    of_layer = 3 * attention + 2 * mlp + 2 * 32 + 2 * 3 * 32  # two of three MLPs, norms, routers
    assert Bam.of(folders(tmp_path), 0, 2).active_parameters() == shared + 3 * of_layer


def test_the_classes_are_registered_by_importing_the_package() -> None:
    assert {config.model_type for config, _ in moerge_lab.mixtures.CLASSES} >= {"moerge_bam", "moerge_bts"}
