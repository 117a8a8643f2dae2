"""Likelihoods of texts under dense experts, and what recipes share of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moerge.errors import MoergeError
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.scoring.perplexity import Rows
from moerge_lab.recipes.base import Likelihoods
from moerge_lab.recipes.likelihoods import Dense, recent, with_seed
from moerge_lab.recipes.registry import RECIPES
from support.models import VOCAB, expert
from support.recipes import built, fleet

SHORT, LONG = [5, 9, 200, 7], [40, 41, 42, 43, 44, 250, 7]
ROWS = Rows(torch.tensor([[*SHORT, 0, 0, 0], LONG]), [4, 7], "")


@contextmanager
def counted(model: torch.nn.Module) -> Iterator[list[int]]:
    """Tokens that the model reads while this is open, call by call."""
    seen: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda _, given, named: seen.append(named["input_ids"].numel()), with_kwargs=True
    )
    yield seen
    handle.remove()


def test_losses_are_each_text_s_alone(tmp_path: Path) -> None:
    folder = expert(tmp_path, 1, initializer_range=0.2)
    result = Dense(folder, "cpu", {}).losses(ROWS)
    for row, ids in zip(result, (SHORT, LONG), strict=True):
        with torch.inference_mode():
            chances = (
                expert_model(DenseFiles(folder))(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(dim=1)
            )
        wanted = torch.tensor([-float(chances[t - 1, ids[t]]) for t in range(1, len(ids))], dtype=torch.float64)
        torch.testing.assert_close(row[: len(wanted)], wanted, rtol=1e-5, atol=1e-6)


def test_a_text_is_read_once_by_each_expert(tmp_path: Path) -> None:
    known: Likelihoods = {}
    first, again = Dense(expert(tmp_path / "1", 1), "cpu", known), Dense(tmp_path / "1", "cpu", known)
    other = Dense(expert(tmp_path / "2", 2), "cpu", known)
    with counted(first.model) as one, counted(again.model) as two, counted(other.model) as three:
        losses = first.losses(ROWS)
        assert torch.equal(again.losses(ROWS), losses)
        assert not torch.allclose(other.losses(ROWS), losses)
    assert (one, two, three) == ([14], [], [14])


@pytest.mark.parametrize("window", [0, 1, 2, 5, 9])
def test_recent_sums_are_of_the_last_values(window: int) -> None:
    values = torch.arange(1.0, 6.0)[None]
    wanted = [float(values[0, max(0, t + 1 - window) if window else 0 : t + 1].sum()) for t in range(5)]
    assert recent(values, window).tolist() == [wanted]


def test_a_seed_model_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    on = replace(fleet(tmp_path), base=None)
    assert with_seed(on, {"seed": 0}) is on
    with pytest.raises(MoergeError, match="seed model"):
        with_seed(on, {"seed": 1})


UNMARKED = [recipe.name for recipe in RECIPES.values() if not recipe.reads_ahead and not recipe.asked_only]
SHORT_WINDOWS = ["btm:window=2", "expert-routing:window=1", "expert-routing-trained:window=1"]
"""With which experts change often."""


@pytest.mark.parametrize("name", [*UNMARKED, *SHORT_WINDOWS])
def test_predictions_do_not_depend_on_later_tokens(tmp_path: Path, name: str) -> None:
    """Neither on what follows the predicted token, nor on that token: the chances of all that it can be sum to 1."""
    on = fleet(tmp_path)
    on = replace(on, domains=on.domains[1:])  # the first has no other text
    text = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(7))
    for row, model in built(name, on):
        with torch.inference_mode():
            whole = model.losses(Rows(text[None], [60], "d1"))[0]
            for end in (2, 20, 41):
                changed = text.clone()
                changed[end:] = (changed[end:] + 100) % 256
                result = model.losses(Rows(changed[None], [60], "d1"))[0]
                torch.testing.assert_close(result[: end - 1], whole[: end - 1], rtol=1e-4, atol=1e-4)
                assert not torch.allclose(result[end - 1 :], whole[end - 1 :]), row
            every = text[:21].repeat(VOCAB, 1)
            every[:, 20] = torch.arange(VOCAB)
            chances = model.losses(Rows(every, [21] * VOCAB, "d1"))[:, 19].neg().exp()
            assert float(chances.sum()) == pytest.approx(1, abs=1e-4), row
