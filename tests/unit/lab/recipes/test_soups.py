"""Soup-of-Experts and its baselines: a model per domain, equal numbers of tokens, and shared banks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moerge.errors import MoergeError
from moerge.scoring.perplexity import Rows
from moerge_lab.recipes.base import Fleet, Model
from moerge_lab.recipes.models import Loaded
from moerge_lab.recipes.soups import GENERIC
from support.recipes import fleet, only

IDS = torch.tensor([[3 * column % 250 for column in range(30)]])
TRAINED = "train=288,batch=2"
CLUSTERED = f"clusters=2,{TRAINED}"


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return fleet(tmp_path_factory.mktemp("fleet"))


@torch.inference_mode()
def losses(model: Model, domain: str) -> Tensor:
    return model.losses(Rows(IDS, [30], domain))


@pytest.mark.parametrize(
    ("spec", "generic"),
    [
        (f"generic:{TRAINED}", True),
        (f"crisp:{CLUSTERED}", False),
        (f"domain-experts:clusters=3,{TRAINED}", False),
        (f"soup:{CLUSTERED}", True),
        (f"soup:rank=4,{CLUSTERED}", True),
        (f"soup:start=scratch,{CLUSTERED}", True),
    ],
)
def test_every_recipe_trains_on_as_many_tokens_in_all(on: Fleet, spec: str, generic: bool) -> None:
    model = only(spec, on)
    assert model.trained is not None
    assert model.trained.tokens == 288
    assert model.reads_domain is not generic
    assert all(losses(model, domain.name).isfinite().all() for domain in on.domains)


@pytest.mark.parametrize("spec", [f"generic:{TRAINED}", f"crisp:{CLUSTERED}", f"domain-experts:{CLUSTERED}"])
def test_baselines_start_from_the_seed_or_the_average(on: Fleet, spec: str) -> None:
    assert on.base is not None
    for start, same in (("seed", Loaded.of(on.base)), ("average", only("averaging", on))):
        still = only(f"{spec},rate=0,start={start}", on)
        torch.testing.assert_close(losses(still, "d1"), losses(same, "d1"))


def test_targets_with_other_texts_get_other_models(on: Fleet) -> None:
    soup, crisp, generic = (
        only(spec, on) for spec in (f"soup:{CLUSTERED}", f"crisp:{CLUSTERED}", f"generic:{TRAINED}")
    )
    for model in (soup, crisp):
        assert not torch.equal(losses(model, "d0"), losses(model, "d2"))
    assert torch.equal(losses(generic, "d0"), losses(generic, GENERIC))


@pytest.mark.parametrize("recipe", ["soup:clusters=2,", "generic:"])
def test_fine_tuning_on_sample_starts_from_the_trained_model(on: Fleet, recipe: str) -> None:
    plain, tuned = (only(f"{recipe}{TRAINED}{more}", on) for more in ("", ",finetune=64"))
    assert torch.equal(losses(plain, GENERIC), losses(tuned, GENERIC))
    assert not torch.equal(losses(plain, "d0"), losses(tuned, "d0"))


def test_a_fit_uses_the_bank_of_the_table(on: Fleet) -> None:
    before = len(on.shared.made)
    only(f"soup:{CLUSTERED},support=1", on)
    trained = len(on.shared.made)
    fitted = only(f"soup:{CLUSTERED},support=1,fit=1", on)
    assert len(on.shared.made) == trained == before + 1
    assert not torch.equal(losses(fitted, "d0"), losses(fitted, GENERIC))


def test_missing_sample_and_missing_training_text_are_named(tmp_path: Path) -> None:
    on = fleet(tmp_path, 2)
    [one, two] = on.domains
    with pytest.raises(MoergeError, match="d1: has no sample"):
        only(f"soup:{CLUSTERED}", replace(on, domains=[one, replace(two, statistics=[[1]])]))
    with pytest.raises(MoergeError, match="d1: has less text for training"):
        only(f"crisp:{CLUSTERED}", replace(on, domains=[one, replace(two, training=torch.empty(0, 16))]))
