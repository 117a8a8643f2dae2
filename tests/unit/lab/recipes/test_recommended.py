"""The recommended recipe: discriminants of every expert's features behind a regmean body; on request more."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from moerge.documents.pool import pool_texts
from moerge.models.dense import domain_model
from moerge.scoring.perplexity import Rows
from moerge.scoring.routers import routers
from moerge_lab.recipes.base import Fleet
from moerge_lab.recipes.models import Loaded
from moerge_proto.statistics_file import Privacy, StatisticsFile, StatisticsSettings, TextBefore
from support.models import on_body
from support.recipes import fleet, logits, only


@torch.inference_mode()
def features(on: Fleet, layer: int, *, fitted: bool, with_seed: bool) -> list[Tensor]:
    """[n, H] float64 of each domain, by a hook of our own: what the MLP of a layer reads behind its owner's MLPs."""
    seen: list[Tensor] = []
    item, members = [], [(domain.expert, domain.statistics) for domain in on.domains]
    if fitted:
        members = [(next(on.work.glob(f"fitted-d{slot}-*")), rows) for slot, (_, rows) in enumerate(members)]
    if with_seed:
        assert on.base is not None
        size, encode = StatisticsSettings().context, AutoTokenizer.from_pretrained(on.base)
        rows = [encode(text)["input_ids"] for text in pool_texts()]
        members.append((on.base, [row[at : at + size] for row in rows for at in range(0, len(row), size)]))
    for folder, documents in members:
        model, _ = domain_model(*on_body(folder, on.work / "body" / "body.safetensors"))
        model.get_submodule(f"model.layers.{layer}.mlp").register_forward_pre_hook(
            lambda _, given: seen.append(given[0][0].double())
        )
        for document in documents:
            model(torch.tensor([document]), use_cache=False)
        item.append(torch.cat(seen))
        seen.clear()
    return item


@pytest.mark.parametrize("spec", ["recommended", "recommended:fit=1", "recommended:body=seed,fit=1,seed=1"])
def test_routers_are_discriminants_of_features_with_owner_mlps(tmp_path: Path, spec: str) -> None:
    on = fleet(tmp_path)
    model = only(spec, on)
    assert isinstance(model, Loaded)
    for layer, router in enumerate(routers(model.model)):
        x = features(on, layer, fitted="fit=1" in spec, with_seed="seed=1" in spec)
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
        ("recommended:body=seed,fit=1,before=1", TextBefore()),
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


def test_router_statistics_alone_have_noise(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    published("recommended:body=seed,head=seed,epsilon=2", on)
    for path in on.work.glob("router-*"):
        with StatisticsFile(path) as file:
            assert file.manifest.settings.privacy == Privacy(epsilon=2.0)
    assert not list(on.work.glob("head-*"))


def test_head_contributions_have_no_noise(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    published("recommended:epsilon=2", on)
    for path in on.work.glob("head-*"):
        with StatisticsFile(path) as file:
            assert file.manifest.settings.privacy is None


@pytest.mark.parametrize("body", ["seed", "regmean"])
def test_the_seed_as_an_expert_is_fitted_to_other_bodies_than_its_own(tmp_path: Path, body: str) -> None:
    on = fleet(tmp_path)
    assert on.base is not None
    stacks = published(f"recommended:body={body},fit=1,seed=1", on).state_dict()
    base = load_file(on.base / "model.safetensors")
    for layer in range(3):
        at = f"model.layers.{layer}.mlp"
        own, *_ = stacks[f"{at}.experts.down_proj"].flip(0)
        assert torch.equal(own, base[f"{at}.down_proj.weight"]) == (body == "seed")
        assert len(stacks[f"{at}.gate.weight"]) == len(on.domains) + 1


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
