"""BTM: Bayes' rule over the experts, place by place."""

from math import exp, log
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.scoring.perplexity import Rows
from moerge_lab.recipes.base import Domain, Fleet, Options
from moerge_lab.recipes.btm import RECIPES, Ensemble, cached_prior
from moerge_lab.recipes.likelihoods import Dense
from support.models import expert

SHORT, LONG = [5, 9, 200, 7], [40, 41, 42, 43, 44, 250, 7]
GIVEN: Options = {"window": 0, "seed": 0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("experts")
    return [expert(folder / str(seed), seed, apart=0.02, initializer_range=0.2) for seed in range(3)]


@pytest.fixture(scope="module")
def models(folders: list[Path]) -> list[PreTrainedModel]:
    return [expert_model(DenseFiles(folder)) for folder in folders]


@pytest.fixture
def experts(folders: list[Path]) -> list[Dense]:
    return [Dense(folder, "cpu", {}) for folder in folders]


def told(model: PreTrainedModel, ids: list[int]) -> list[float]:
    """p(x_t | x_<t) for every t but the first."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    table = logits.double().softmax(dim=1)
    return [float(table[t - 1, ids[t]]) for t in range(1, len(ids))]


def by_hand(models: list[PreTrainedModel], prior: list[float], ids: list[int], window: int = 0) -> Tensor:
    """The ensemble's -log p(x_t+1 | x_<=t) for every t, as the formula says it, one product at a time."""
    tables = [[1.0, *told(model, ids)] for model in models]
    result = []
    for t in range(len(ids) - 1):
        joint = list(prior)
        for d, table in enumerate(tables):
            for s in range(max(1, t - window + 1) if window else 1, t + 1):
                joint[d] *= table[s]
        posterior = [item / sum(joint) for item in joint]
        result.append(-log(sum(share * table[t + 1] for share, table in zip(posterior, tables, strict=True))))
    return torch.tensor(result, dtype=torch.float64)


def padded(*rows: list[int]) -> Rows:
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return Rows(ids, [len(row) for row in rows], "")


@pytest.mark.parametrize("window", [0, 1, 3, 100])
@pytest.mark.parametrize("prior", [[1 / 3, 1 / 3, 1 / 3], [0.7, 0.1, 0.2]])
def test_next_tokens_are_mixed_by_the_posterior_of_the_prefix(
    experts: list[Dense], models: list[PreTrainedModel], prior: list[float], window: int
) -> None:
    result = Ensemble(experts, torch.tensor(prior), window).losses(padded(SHORT, LONG))
    for item, ids in zip(result, (SHORT, LONG), strict=True):
        torch.testing.assert_close(item[: len(ids) - 1], by_hand(models, prior, ids, window), rtol=1e-5, atol=1e-6)


def test_long_text_evidence_stays_finite_and_window_accurate(
    experts: list[Dense], models: list[PreTrainedModel]
) -> None:
    ids = torch.randint(0, 256, (250,), generator=torch.Generator().manual_seed(0)).tolist()
    for window in (0, 2):
        result = Ensemble(experts, torch.full((3,), 1 / 3), window).losses(padded(ids))[0]
        last = by_hand(models, [1 / 3] * 3, ids, window) if window else result
        assert bool(result.isfinite().all())
        torch.testing.assert_close(result, last, rtol=1e-5, atol=1e-5)


def test_cached_prior_is_the_mean_posterior_of_documents(experts: list[Dense], models: list[PreTrainedModel]) -> None:
    wanted = torch.zeros(3, dtype=torch.float64)
    for document in (SHORT, LONG):
        logs = [sum(map(log, told(model, document))) for model in models]
        joint = torch.tensor([exp(item - max(logs)) for item in logs], dtype=torch.float64)
        wanted += joint / joint.sum() / 2
    torch.testing.assert_close(cached_prior(experts, [SHORT, LONG]), wanted, rtol=1e-4, atol=1e-9)


def test_recipes_give_ensembles_whose_every_expert_counts(folders: list[Path], tmp_path: Path) -> None:
    domains = [Domain(folder.name, folder, [SHORT, LONG][n % 2 :]) for n, folder in enumerate(folders)]
    built = {
        name: model for recipe in RECIPES for name, model in recipe.build(Fleet(domains, None, 0, tmp_path), GIVEN)
    }
    assert built.keys() == {"btm", "btm-cached"}
    models = [expert_model(DenseFiles(folder)) for folder in folders]
    uniform = by_hand(models, [1 / 3] * 3, LONG)
    torch.testing.assert_close(built["btm"].losses(padded(LONG))[0], uniform, rtol=1e-5, atol=1e-6)
    prior = cached_prior([Dense(folder, "cpu", {}) for folder in folders], [SHORT, LONG, LONG, SHORT, LONG]).tolist()
    cached = by_hand(models, prior, LONG)
    torch.testing.assert_close(built["btm-cached"].losses(padded(LONG))[0], cached, rtol=1e-5, atol=1e-6)
    layer = 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48 + 2 * 32
    assert built["btm"].active_parameters == 3 * (3 * layer + 32 + 300 * 32)


def test_the_seed_model_is_one_of_the_experts_if_asked_for(folders: list[Path], tmp_path: Path) -> None:
    *others, seed = folders
    models = [expert_model(DenseFiles(folder)) for folder in folders]
    domains = [Domain(folder.name, folder, [LONG]) for folder in others]
    for recipe in RECIPES:
        ((_, model),) = recipe.build(Fleet(domains, seed, 0, tmp_path), {**GIVEN, "seed": 1})
        prior = [1 / 3] * 3
        if recipe.name == "btm-cached":
            prior = cached_prior([Dense(folder, "cpu", {}) for folder in folders], [LONG, LONG]).tolist()
        torch.testing.assert_close(model.losses(padded(LONG))[0], by_hand(models, prior, LONG), rtol=1e-5, atol=1e-6)
