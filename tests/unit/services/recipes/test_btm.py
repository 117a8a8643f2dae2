"""BTM: Bayes' rule over the experts, place by place."""

from math import exp, log
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.models.dense import expert_model
from moerge.recipes.base import Domain, Fleet
from moerge.recipes.btm import RECIPES, Ensemble, cached_prior
from moerge.scoring.perplexity import Rows
from support.models import expert

SHORT, LONG = [5, 9, 200, 7], [40, 41, 42, 43, 44, 250, 7]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("experts")
    return [expert(folder / str(seed), seed, apart=0.02, initializer_range=0.2) for seed in range(3)]


@pytest.fixture(scope="module")
def models(folders: list[Path]) -> list[PreTrainedModel]:
    return [expert_model(folder) for folder in folders]


def chances(model: PreTrainedModel, ids: list[int]) -> list[list[float]]:
    """p(. | x_<=t) for every t."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    return [list(map(float, row)) for row in logits.double().softmax(dim=1)]


def by_hand(models: list[PreTrainedModel], prior: list[float], ids: list[int]) -> list[list[float]]:
    """The ensemble's p(. | x_<=t) for every t, as the formula says it, one product at a time."""
    tables = [chances(model, ids) for model in models]
    found = []
    for t in range(len(ids)):
        joint = list(prior)
        for d, table in enumerate(tables):
            for s in range(1, t + 1):
                joint[d] *= table[s - 1][ids[s]]
        posterior = [each / sum(joint) for each in joint]
        parts = zip(posterior, tables, strict=True)
        mixed = [[share * chance for chance in table[t]] for share, table in parts]
        found.append([sum(column) for column in zip(*mixed, strict=True)])
    return found


def scored(ensemble: Ensemble, *rows: list[int]) -> list[Tensor]:
    """The ensemble's chances for rows of one padded batch, each without its padding."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    logits = ensemble.logits(Rows(ids, [len(row) for row in rows], ""))
    assert logits.dtype == torch.float32
    return [each[: len(row)].softmax(dim=1) for each, row in zip(logits, rows, strict=True)]


@pytest.mark.parametrize("prior", [[1 / 3, 1 / 3, 1 / 3], [0.7, 0.1, 0.2]])
def test_next_tokens_are_mixed_by_the_posterior_of_what_was_read(
    models: list[PreTrainedModel], prior: list[float]
) -> None:
    ensemble = Ensemble(models, torch.tensor(prior))
    for found, ids in zip(scored(ensemble, SHORT, LONG), (SHORT, LONG), strict=True):
        torch.testing.assert_close(found, torch.tensor(by_hand(models, prior, ids)), rtol=1e-4, atol=1e-8)


def test_no_token_is_looked_at_ahead_of_time(models: list[PreTrainedModel]) -> None:
    ensemble = Ensemble(models, torch.full((3,), 1 / 3))
    one, other = scored(ensemble, LONG, [*LONG[:-1], 99])
    torch.testing.assert_close(one[:-1], other[:-1])
    assert not torch.allclose(one[-1], other[-1])


def test_a_long_text_leaves_a_distribution(models: list[PreTrainedModel]) -> None:
    ids = torch.randint(0, 256, (250,), generator=torch.Generator().manual_seed(0)).tolist()
    logits = Ensemble(models, torch.full((3,), 1 / 3)).logits(Rows(torch.tensor([ids]), [250], ""))
    total = logits.double().exp().sum(dim=2)
    torch.testing.assert_close(total, torch.ones(1, 250, dtype=torch.float64), rtol=1e-5, atol=0)


def test_the_cached_prior_is_the_mean_posterior_of_whole_documents(models: list[PreTrainedModel]) -> None:
    wanted = torch.zeros(3, dtype=torch.float64)
    for document in (SHORT, LONG):
        logs = [
            sum(log(chances(model, document)[t - 1][document[t]]) for t in range(1, len(document))) for model in models
        ]
        joint = torch.tensor([exp(each - max(logs)) for each in logs], dtype=torch.float64)
        wanted += joint / joint.sum() / 2
    torch.testing.assert_close(cached_prior(models, [SHORT, LONG]), wanted, rtol=1e-4, atol=1e-9)


def test_recipes_give_ensembles_whose_every_expert_counts(folders: list[Path], tmp_path: Path) -> None:
    domains = [Domain(folder.name, folder, [SHORT, LONG][n % 2 :]) for n, folder in enumerate(folders)]
    built = {
        name: model
        for recipe in RECIPES
        for name, model in recipe.build(Fleet(domains, None, 0, tmp_path), recipe.options)
    }
    assert built.keys() == {"btm", "btm-cached"}
    models = [expert_model(folder) for folder in folders]
    uniform = torch.tensor(by_hand(models, [1 / 3] * 3, LONG))
    rows = Rows(torch.tensor([LONG]), [len(LONG)], "")
    torch.testing.assert_close(built["btm"].logits(rows)[0].softmax(dim=1), uniform, rtol=1e-4, atol=1e-8)
    prior = cached_prior(models, [SHORT, LONG, LONG, SHORT, LONG]).tolist()
    cached = torch.tensor(by_hand(models, prior, LONG))
    torch.testing.assert_close(built["btm-cached"].logits(rows)[0].softmax(dim=1), cached, rtol=1e-4, atol=1e-8)
    layer = 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48 + 2 * 32
    assert built["btm"].active_parameters == 3 * (3 * layer + 32 + 300 * 32)
