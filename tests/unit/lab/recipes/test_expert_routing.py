"""Expert routing: a linear router on the mean embedding of the tokens before chooses one expert."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.families.family import EMBEDDING
from moerge.models.reader import Checkpoint
from moerge.scoring.perplexity import Rows
from moerge_lab.recipes.base import Domain, Fleet, Model, Options
from moerge_lab.recipes.expert_routing import RECIPES, PrefixRouted, closed_form, mean_embeddings, stretches, trained
from moerge_lab.recipes.likelihoods import Dense
from support.models import expert

EVEN, ODD = [2, 4, 6, 8, 10, 12], [1, 3, 5, 7]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("experts")
    return [expert(folder / str(seed), seed, apart=0.02, initializer_range=0.2) for seed in range(2)]


def test_a_row_s_feature_is_the_mean_of_its_embeddings() -> None:
    table = torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])
    result = mean_embeddings(table, [[0, 1], [2], [0, 0, 1, 1]])
    assert result.tolist() == [[0.5, 1.0], [4.0, 4.0], [0.5, 1.0]]


def test_windowed_router_is_fitted_to_stretches_of_its_window() -> None:
    texts, targets = [[1, 2, 3, 4, 5, 6, 7], [8, 9]], torch.tensor([1, 0])
    whole, same = stretches(texts, targets, 0)
    assert (whole, same.tolist()) == (texts, [1, 0])
    cut, wanted = stretches(texts, targets, 4)
    assert (cut, wanted.tolist()) == ([[1, 2, 3, 4], [3, 4, 5, 6], [8, 9]], [1, 1, 0])


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


def told(folder: Path, ids: list[int]) -> Tensor:
    """-log p of each token but the first."""
    with torch.inference_mode():
        chances: Tensor = expert_model(DenseFiles(folder))(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=1)
    return -chances[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0].double()


@pytest.mark.parametrize("window", [0, 1, 3, 50])
def test_router_selects_expert_by_mean_embedding_of_the_prefix(folders: list[Path], window: int) -> None:
    table = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    router = torch.randn(4, 2, generator=torch.Generator().manual_seed(1))
    model = PrefixRouted([Dense(folder, "cpu", {}) for folder in folders], table, router, window)
    texts = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(2)).tolist()
    texts[1] = texts[1][:9]
    result = model.losses(Rows(torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, texts)), True), [12, 9], ""))
    read, predicted, chosen = 0, 0, set[int]()
    for row, ids in zip(result, texts, strict=True):
        last = [0, 0]
        for t in range(len(ids) - 1):
            before = ids[max(0, t + 1 - window) if window else 0 : t + 1]
            expert_of = int((table[before].mean(dim=0) @ router).argmax())
            last[expert_of] = t + 1
            assert float(row[t]) == pytest.approx(float(told(folders[expert_of], ids)[t]), rel=1e-5)
            chosen.add(expert_of)
        read, predicted = read + sum(last), predicted + len(ids) - 1
    assert chosen == {0, 1}
    layer, head = 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48 + 2 * 32, 300 * 32
    assert model.active_parameters == pytest.approx((3 * layer + 32) * read / predicted + head + 8)


GIVEN: Options = {"lambda": 0.01, "steps": 1000, "window": 0, "seed": 0}


def likeliest(folders: list[Path]) -> list[list[list[int]]]:
    """Texts that each expert finds likeliest, of tokens of their own."""
    result = []
    for slot, model in enumerate(map(expert_model, map(DenseFiles, folders))):
        rows = torch.arange(20 + 100 * slot, 36 + 100 * slot)[:, None]
        with torch.inference_mode():
            for _ in range(40):
                rows = torch.cat([rows, model(input_ids=rows).logits[:, -1:].argmax(dim=2)], dim=1)
        result.append(rows.tolist())
    return result


def chosen_by(router: Model, folders: list[Path], texts: list[list[int]]) -> list[int]:
    """The number of texts of which each expert predicts the last token."""
    last = router.losses(Rows(torch.tensor(texts), [len(text) for text in texts], ""))[:, -1]
    pairs = list(zip(texts, last.tolist(), strict=True))
    return [sum(abs(float(told(folder, text)[-1]) - loss) < 1e-4 for text, loss in pairs) for folder in folders]


def test_the_target_is_the_expert_with_the_smallest_loss(folders: list[Path], tmp_path: Path) -> None:
    """Each expert's likeliest continuations are its own domain's text, so both routers must find them again."""
    documents = likeliest(folders)
    swapped = [Domain("first", folders[0], documents[1]), Domain("second", folders[1], documents[0])]
    for recipe in RECIPES:
        ((name, router),) = recipe.build(Fleet(swapped, None, 0, tmp_path), GIVEN)
        assert name == recipe.name
        for slot, texts in enumerate(documents):
            assert chosen_by(router, folders, texts)[slot] > 10, (name, slot)


def test_the_seed_model_wins_where_its_loss_is_the_smallest(folders: list[Path], tmp_path: Path) -> None:
    """Of three models the last is the seed; its likeliest texts are those of the second expert's domain."""
    models = [*folders, expert(tmp_path / "seed", 7, apart=0.02, initializer_range=0.2)]
    documents = likeliest(models)
    domains = [Domain("first", folders[0], documents[0]), Domain("second", folders[1], documents[2])]
    for recipe in RECIPES:
        ((name, router),) = recipe.build(Fleet(domains, models[2], 0, tmp_path), {**GIVEN, "seed": 1})
        assert chosen_by(router, models, documents[2])[2] > 10, name


def test_the_base_model_s_embeddings_are_taken_if_there_is_one(folders: list[Path], tmp_path: Path) -> None:
    base = expert(tmp_path / "base", 9, apart=0.02)
    domains = [Domain("first", folders[0], [EVEN]), Domain("second", folders[1], [ODD])]
    wanted = Checkpoint(base).tensor(EMBEDDING)
    ((_, model),) = RECIPES[0].build(Fleet(domains, base, 0, tmp_path), GIVEN)
    assert isinstance(model, PrefixRouted)
    torch.testing.assert_close(model.table, wanted)
    own = [Checkpoint(folder).tensor(EMBEDDING) for folder in folders]
    ((_, model),) = RECIPES[0].build(Fleet(domains, None, 0, tmp_path), GIVEN)
    assert isinstance(model, PrefixRouted)
    torch.testing.assert_close(model.table, torch.stack(own).mean(dim=0))
