"""The recommended recipe: discriminants of every expert's features behind a regmean body; on request more."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from moerge.models.dense import domain_model
from moerge.scoring.perplexity import Rows
from moerge.scoring.routers import routers
from moerge_lab.recipes.base import Fleet
from moerge_lab.recipes.models import Loaded
from moerge_proto.statistics_file import StatisticsFile, TextBefore
from support.models import on_body
from support.recipes import fleet, logits, only


@torch.inference_mode()
def features(on: Fleet, layer: int, *, fitted: bool) -> list[Tensor]:
    """[n, H] float64 of each domain, by a hook of our own: what the MLP of a layer reads behind its owner's MLPs."""
    seen: list[Tensor] = []
    item = []
    for slot, domain in enumerate(on.domains):
        folder = next(on.work.glob(f"fitted-d{slot}-*")) if fitted else domain.expert
        model, _ = domain_model(*on_body(folder, on.work / "body" / "body.safetensors"))
        model.get_submodule(f"model.layers.{layer}.mlp").register_forward_pre_hook(
            lambda _, given: seen.append(given[0][0].double())
        )
        for document in domain.statistics:
            model(torch.tensor([document]), use_cache=False)
        item.append(torch.cat(seen))
        seen.clear()
    return item


@pytest.mark.parametrize("spec", ["recommended", "recommended:fit=1", "recommended:body=seed,fit=1"])
def test_routers_are_discriminants_of_features_with_owner_mlps(tmp_path: Path, spec: str) -> None:
    on = fleet(tmp_path)
    model = only(spec, on)
    assert isinstance(model, Loaded)
    for layer, router in enumerate(routers(model.model)):
        x = features(on, layer, fitted="fit=1" in spec)
        means = torch.stack([part.mean(dim=0) for part in x])
        gram = torch.stack([part.T @ part / len(part) for part in x]).mean(dim=0)  # all domains alike
        gram += 1e-3 * gram.diagonal().mean() * torch.eye(len(gram))
        columns = torch.linalg.solve(gram - means.T @ means / len(x), means.T)
        constants = -torch.tensor(len(x)).double().log() - (means.T * columns).sum(dim=0) / 2
        ones = torch.linalg.solve(gram, means.mean(dim=0))
        scores = (columns + torch.outer(ones, constants)).T.float()
        expected = scores - scores.mean(dim=0)
        result = router.get_parameter("weight").detach()
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-3 * float(expected.abs().max()))


def published(spec: str, on: Fleet) -> PreTrainedModel:
    model = only(spec, on)
    assert isinstance(model, Loaded)
    return model.model


@pytest.mark.parametrize(
    ("spec", "before"),
    [
        ("recommended", None),
        ("recommended:before=1", TextBefore()),
        ("recommended:context=16", TextBefore(context_weight=16)),
        ("recommended:body=seed,fit=1,before=1,context=4", TextBefore(context_weight=4)),
    ],
)
def test_options_say_what_stands_before_the_text_of_router_statistics_alone(
    tmp_path: Path, spec: str, before: TextBefore | None
) -> None:
    on = fleet(tmp_path)
    found = [router.get_parameter("weight") for router in routers(published(spec, on))]
    for path in on.work.rglob("*.safetensors"):
        if path.name.startswith(("router-", "head-", "body-")):
            with StatisticsFile(path) as file:
                expected = before if file.manifest.kind == "router" else None
                assert file.manifest.settings.before == expected
                assert file.manifest.tokens == sum(map(len, on.domains[int(file.manifest.domain[1:])].statistics))
    without = [router.get_parameter("weight") for router in routers(published("recommended", on))]
    assert all(torch.equal(*pair) == (spec == "recommended") for pair in zip(found, without, strict=True))


@torch.inference_mode()
def test_its_oracle_runs_each_domain_s_fitted_expert(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    ids = torch.tensor([[3 * column % 250 for column in range(30)]])
    model = only("recommended-oracle:fit=1", on)
    for slot, domain in enumerate(on.domains):
        alone, _ = domain_model(
            *on_body(next(on.work.glob(f"fitted-d{slot}-*")), on.work / "body" / "body.safetensors"),
        )
        alone.load_state_dict(load_file(on.work / "version" / "model-head.safetensors"), strict=False)
        result = logits(model, Rows(ids, [30], domain.name))
        torch.testing.assert_close(result, alone(ids).logits, rtol=0, atol=1e-4)
