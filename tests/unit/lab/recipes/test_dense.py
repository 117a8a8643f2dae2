"""Dense merges follow their formulas in every parameter, those of the MLPs too."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge_lab.recipes.base import Fleet
from moerge_lab.recipes.models import Loaded
from support.recipes import built, fleet, only

QUERY, DOWN, NORM = "self_attn.q_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"


def state(model: object) -> dict[str, Tensor]:
    assert isinstance(model, Loaded)
    result: dict[str, Tensor] = model.model.state_dict()
    return result


def folder_state(folder: Path) -> dict[str, Tensor]:
    result: dict[str, Tensor] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    return result


def task_vectors(on: Fleet, name: str) -> tuple[Tensor, Tensor]:
    """The base's tensor, and the experts' minus it, [D, ...]."""
    assert on.base is not None
    base = folder_state(on.base)[name]
    return base, torch.stack([folder_state(domain.expert)[name] - base for domain in on.domains])


def test_the_experts_are_themselves(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    rows = built("experts", on)
    assert [row for row, _ in rows] == ["d0 expert", "d1 expert", "d2 expert"]
    for (_, model), domain in zip(rows, on.domains, strict=True):
        expected = folder_state(domain.expert)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in state(model).items())


def test_averages_cover_all_parameters_and_weight_by_tokens(tmp_path: Path) -> None:
    """The texts have 320, 280 and 240 tokens."""
    on = fleet(tmp_path)
    experts = [folder_state(domain.expert) for domain in on.domains]
    averaging, weighted = state(only("averaging", on)), state(only("weighted", on))
    assert averaging.keys() == experts[0].keys()
    for name, tensor in averaging.items():
        item = torch.stack([expert[name].double() for expert in experts])
        torch.testing.assert_close(tensor.double(), item.mean(dim=0), atol=1e-6, rtol=1e-6)
        mean = torch.einsum("d...,d->...", item, torch.tensor([320, 280, 240]).double() / 840)
        torch.testing.assert_close(weighted[name].double(), mean, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("part", [QUERY, DOWN, NORM])
def test_task_arithmetic_adds_scaled_task_vectors_to_the_base(tmp_path: Path, part: str) -> None:
    on, name = fleet(tmp_path), f"model.layers.1.{part}"
    base, vectors = task_vectors(on, name)
    torch.testing.assert_close(state(only("task-arithmetic", on))[name], base + vectors.sum(dim=0) / 3)
    torch.testing.assert_close(state(only("task-arithmetic:scale=1", on))[name], base + vectors.sum(dim=0))


@pytest.mark.parametrize("part", [QUERY, DOWN])
def test_ties_trims_elects_and_adds_a_third(tmp_path: Path, part: str) -> None:
    on, name = fleet(tmp_path), f"model.layers.1.{part}"
    base, vectors = task_vectors(on, name)
    kept = round(0.8 * base.numel())
    for vector in vectors:
        vector[vector.abs() < vector.abs().flatten().sort(descending=True).values[kept - 1]] = 0
    agreeing = torch.where(vectors.sign() == vectors.sum(dim=0).sign(), vectors, 0.0)
    torch.testing.assert_close(state(only("ties", on))[name], base + agreeing.sum(dim=0) / 3)


@pytest.mark.parametrize("part", [QUERY, DOWN])
def test_dare_drops_a_fifth_of_task_vectors_and_rescales_rest(tmp_path: Path, part: str) -> None:
    on, name = fleet(tmp_path), f"model.layers.1.{part}"
    base, vectors = task_vectors(on, name)
    result = state(only("dare", on))[name] - base
    subsets = torch.stack([torch.tensor([float(n >> d & 1) for d in range(3)]) for n in range(8)])
    sums = torch.einsum("sd,d...->s...", subsets, vectors) / 0.8 / 3  # of what can be kept
    nearest = (sums - result).abs().min(dim=0)
    assert float(nearest.values.max()) < 1e-5
    assert float(subsets.sum(dim=1)[nearest.indices].mean() / 3) == pytest.approx(0.8, abs=0.03)
    other = state(only("dare", Fleet(on.domains, on.base, 1, on.work)))[name] - base
    assert not torch.equal(other, result)
