"""Expert routing: a linear router on mean embeddings, and one expert for all of an input."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from moerge.models.dense import expert_model
from moerge.models.families import EMBEDDING
from moerge.models.reader import Checkpoint
from moerge.recipes.base import Domain, Fleet
from moerge.recipes.expert_routing import RECIPES, SequenceRouted, closed_form, mean_embeddings, trained
from moerge.scoring.perplexity import Rows
from support.models import expert

EVEN, ODD = [2, 4, 6, 8, 10, 12], [1, 3, 5, 7]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("experts")
    return [expert(folder / str(seed), seed, apart=0.02, initializer_range=0.2) for seed in range(2)]


@pytest.fixture(scope="module")
def models(folders: list[Path]) -> list[PreTrainedModel]:
    return [expert_model(folder) for folder in folders]


def test_a_row_s_feature_is_the_mean_of_its_embeddings() -> None:
    table = torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])
    found = mean_embeddings(table, [[0, 1], [2], [0, 0, 1, 1]])
    assert found.tolist() == [[0.5, 1.0], [4.0, 4.0], [0.5, 1.0]]


def test_the_closed_form_is_ridge_regression_on_one_hot_targets() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0]])  # X^T X = diag(1, 4), its mean diagonal 2.5; X^T Y = diag(1, 2)
    router = closed_form(features, torch.tensor([0, 1]), domains=2, ridge_lambda=0.4)
    torch.testing.assert_close(router, torch.tensor([[0.5, 0.0], [0.0, 0.4]]))


def test_the_trained_router_steps_down_the_cross_entropy() -> None:
    features = torch.tensor([[1.0, -3.0], [1.0, -3.0]])
    targets = torch.tensor([1, 1])  # the gradient from zero is x (softmax - one-hot) = x (0.5, -0.5)
    step = trained(lambda numbers: features[numbers], targets, (2, 2), steps=1, seed=0)
    torch.testing.assert_close(step, 5e-4 * torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))  # Adam's first is its sign


def test_the_trained_router_learns_which_expert_a_text_wants() -> None:
    features = torch.tensor([[1.0, 0.2], [0.2, 1.0], [0.9, 0.3], [0.1, 0.6]])
    targets = torch.tensor([0, 1, 0, 1])
    router = trained(lambda numbers: features[numbers], targets, (2, 2), steps=20, seed=0)
    assert (features @ router).argmax(dim=1).tolist() == targets.tolist()


def test_all_of_a_row_goes_to_one_expert_by_its_real_tokens_alone(models: list[PreTrainedModel]) -> None:
    table = torch.zeros(300, 1)
    table[EVEN], table[ODD], table[0] = -1.0, 1.0, 100.0  # the padding would outweigh all
    model = SequenceRouted(models, table, torch.tensor([[-1.0, 1.0]]))
    ids = torch.tensor([EVEN, [*ODD, 0, 0]])
    found = model.logits(Rows(ids, [6, 4], ""))
    with torch.inference_mode():
        torch.testing.assert_close(found[0], models[0](input_ids=ids[:1]).logits[0])
        torch.testing.assert_close(found[1, :4], models[1](input_ids=ids[1:, :4]).logits[0])


def test_the_target_is_the_expert_with_the_smallest_loss(folders: list[Path], tmp_path: Path) -> None:
    """Each expert's likeliest continuations are its own domain's text, so both routers must find them again."""
    models = [expert_model(folder) for folder in folders]
    documents = []
    for slot, model in enumerate(models):
        rows = torch.arange(20 + 100 * slot, 36 + 100 * slot)[:, None]
        with torch.inference_mode():
            for _ in range(40):
                rows = torch.cat([rows, model(input_ids=rows).logits[:, -1:].argmax(dim=2)], dim=1)
        documents.append(rows.tolist())
    swapped = [Domain("first", folders[0], documents[1]), Domain("second", folders[1], documents[0])]
    for recipe in RECIPES:
        ((name, router),) = recipe.build(Fleet(swapped, None, 0, tmp_path), recipe.options)
        assert name == recipe.name
        for slot, (own, texts) in enumerate(zip(models, documents, strict=True)):
            ids = torch.tensor(texts)
            found = router.logits(Rows(ids, [41] * len(ids), ""))
            with torch.inference_mode():
                wanted = own(input_ids=ids).logits
            right = sum(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, wanted, strict=True))
            assert right > 10, (name, slot, right)


def test_the_base_model_s_embeddings_are_taken_if_there_is_one(folders: list[Path], tmp_path: Path) -> None:
    base = expert(tmp_path / "base", 9, apart=0.02)
    domains = [Domain("first", folders[0], [EVEN]), Domain("second", folders[1], [ODD])]
    wanted = Checkpoint(base).tensor(EMBEDDING)
    ((_, model),) = RECIPES[0].build(Fleet(domains, base, 0, tmp_path), RECIPES[0].options)
    assert isinstance(model, SequenceRouted)
    torch.testing.assert_close(model.table, wanted)
    own = [Checkpoint(folder).tensor(EMBEDDING) for folder in folders]
    ((_, model),) = RECIPES[0].build(Fleet(domains, None, 0, tmp_path), RECIPES[0].options)
    assert isinstance(model, SequenceRouted)
    torch.testing.assert_close(model.table, torch.stack(own).mean(dim=0))
