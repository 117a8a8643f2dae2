"""Rows for newer work follow the formulas of their papers."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.scoring.perplexity import Rows
from moerge.trunk.regmean import SHRINKAGE_TO_AVERAGE
from moerge_lab.recipes.base import Shared
from moerge_lab.recipes.models import Loaded
from moerge_lab.recipes.newer import second_order
from support.recipes import fleet, logits, only

HELD = torch.tensor([[3 * column % 250 for column in range(30)]])


def test_harc_s_fit_is_the_newton_step_of_the_domains_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(20 + 5 * domain, 4, generator=generator).double() + domain / 3 for domain in range(3)]
    router, ridge = 0.1 * torch.randn(3, 4, generator=generator).double(), 0.01

    def loss(weights: Tensor) -> Tensor:
        each = [-(x @ weights.T).log_softmax(dim=1)[:, domain].mean() for domain, x in enumerate(features)]
        return torch.stack(each).mean()

    hessian = torch.autograd.functional.hessian(loss, router).reshape(12, 12)
    gradient = torch.autograd.functional.jacobian(loss, router).reshape(12)
    unit = float(torch.stack([x.square().mean() for x in features]).mean())
    expected = router - torch.linalg.solve(hessian + ridge * unit * torch.eye(12), gradient).reshape(3, 4)
    torch.testing.assert_close(second_order(router, features, ridge), expected)
    assert loss(expected) < loss(router)


def test_a_harc_version_has_moerge_s_trunk_and_other_routers(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    with torch.inference_mode():
        found, moerge = (logits(only(spec, on), Rows(HELD, [30], "")) for spec in ("harc", "moerge"))
        shrunk = logits(only("harc:ridge=1e9", on), Rows(HELD, [30], ""))
    assert not torch.allclose(found, moerge, atol=1e-3)
    torch.testing.assert_close(shrunk, moerge, atol=1e-3, rtol=0)


@torch.inference_mode()
def test_regmean_plus_solves_a_layer_behind_the_merged_layers_below_it(tmp_path: Path) -> None:
    on, module = fleet(tmp_path), "model.layers.1.self_attn.o_proj"
    model = only("regmean-plus", on)
    assert isinstance(model, Loaded)
    found = model.model.get_submodule(module).get_parameter("weight").double()
    trunk = load_file(on.work / "trunk.safetensors")
    below = {name: each for name, each in trunk.items() if name.startswith(("model.embed", "model.layers.0."))}
    total, tokens = torch.zeros(32, 32, dtype=torch.float64), 0
    right, mean = torch.zeros_like(total), torch.zeros_like(total)
    for domain in on.domains:
        expert = AutoModelForCausalLM.from_pretrained(domain.expert, dtype=torch.float32)
        expert.load_state_dict({**expert.state_dict(), **below})
        seen: list[Tensor] = []
        expert.get_submodule(module).register_forward_pre_hook(lambda _, given, to=seen: to.append(given[0][0]))
        for document in domain.statistics:
            expert(torch.tensor([document]), use_cache=False)
        x, own = torch.cat(seen).double(), expert.get_submodule(module).get_parameter("weight").double()
        gram = x.T @ x / x.square().sum(dim=0).mean()
        total, right, mean, tokens = total + gram, right + own @ gram, mean + own / 3, tokens + len(x)
    shrinkage = SHRINKAGE_TO_AVERAGE * 32 / tokens * total.diagonal().mean() * torch.eye(32, dtype=torch.float64)
    expected = torch.linalg.solve(total + shrinkage, (right + mean @ shrinkage).T).T
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    plain = only("regmean", on)
    assert isinstance(plain, Loaded)
    assert not torch.allclose(plain.model.get_submodule(module).get_parameter("weight").double(), expected, atol=1e-4)


@torch.inference_mode()
def test_regmean_plus_needs_no_trunk_of_other_rows_and_changes_none(tmp_path: Path) -> None:
    alone, kept = fleet(tmp_path), tmp_path / "kept"
    kept.mkdir()
    shared = replace(alone, shared=Shared(kept))
    rows = [("regmean", shared), ("regmean-plus", shared), ("regmean", shared), ("regmean-plus", alone)]
    before, plus, after, same = (logits(only(spec, on), Rows(HELD, [30], "")) for spec, on in rows)
    assert torch.equal(before, after)
    assert torch.equal(plus, same)
    assert not torch.allclose(plus, before, atol=1e-6)
