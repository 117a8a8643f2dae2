"""moerge's own recipe: discriminants of features behind the mean MLPs, and every expert's MLPs fitted to the trunk."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.checkpoint.reader import Checkpoint
from moerge.evaluate.routing import routers
from moerge.recipes.base import Fleet, Rows
from moerge.recipes.models import Loaded
from moerge.trunk.domain_model import domain_model
from support.recipes import fleet, only


@torch.inference_mode()
def features(on: Fleet, layer: int) -> list[Tensor]:
    """[n, H] float64 of each domain, by a hook of our own: what the MLP of a layer reads behind the mean MLPs."""
    model, _ = domain_model(on.work / "means", on.work / "trunk.safetensors")
    seen: list[Tensor] = []
    model.get_submodule(f"model.layers.{layer}.mlp").register_forward_pre_hook(
        lambda _, given: seen.append(given[0][0].double())
    )
    each = []
    for domain in on.domains:
        for document in domain.statistics:
            model(torch.tensor([document]), use_cache=False)
        each.append(torch.cat(seen))
        seen.clear()
    return each


@pytest.mark.parametrize("spec", ["moerge:means=1", "moerge:fit=0,means=1"])
def test_its_routers_are_discriminants_of_features_behind_the_mean(tmp_path: Path, spec: str) -> None:
    on = fleet(tmp_path)
    model = only(spec, on)
    assert isinstance(model, Loaded)
    for layer, router in enumerate(routers(model.model)):
        x = features(on, layer)
        means = torch.stack([part.mean(dim=0) for part in x])
        gram = torch.stack([part.T @ part / len(part) for part in x]).mean(dim=0)  # all domains alike
        gram += 1e-3 * gram.diagonal().mean() * torch.eye(len(gram))
        columns = torch.linalg.solve(gram - means.T @ means / len(x), means.T)
        constants = -torch.tensor(len(x)).double().log() - (means.T * columns).sum(dim=0) / 2
        ones = torch.linalg.solve(gram, means.mean(dim=0))
        expected = (columns + torch.outer(ones, constants)).T.float()
        found = router.get_parameter("weight").detach()
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3 * float(expected.abs().max()))


def test_the_mean_is_of_all_experts_and_used_only_if_asked_for(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    only("moerge:means=1", on)
    for name in ("gate", "up", "down"):
        tensor = f"model.layers.2.mlp.{name}_proj.weight"
        expected = torch.stack([Checkpoint(domain.expert).tensor(tensor) for domain in on.domains]).mean(dim=0)
        torch.testing.assert_close(Checkpoint(on.work / "means").tensor(tensor), expected)
    drawn = Checkpoint(on.work / "fitted-0").tensor("model.layers.0.mlp.up_proj.weight")
    only("moerge", on)
    assert not torch.allclose(drawn, Checkpoint(on.work / "fitted-0").tensor("model.layers.0.mlp.up_proj.weight"))


@torch.inference_mode()
def test_its_oracle_runs_each_domain_s_fitted_expert(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    ids = torch.tensor([[3 * column % 250 for column in range(30)]])
    model = only("moerge-oracle", on)
    for slot, domain in enumerate(on.domains):
        alone = AutoModelForCausalLM.from_pretrained(on.work / f"fitted-{slot}", dtype=torch.float32)
        found = model.logits(Rows(ids, [30], domain.name))
        torch.testing.assert_close(found, alone(ids).logits, rtol=0, atol=1e-4)
