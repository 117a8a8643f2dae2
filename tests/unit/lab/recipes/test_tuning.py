"""Options that recipes choose by the tuning text."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moerge.errors import MoergeError
from moerge.models.dense import domain_model, expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import all_counted
from moerge.scoring.perplexity import Losses, Rows, Window, windows
from moerge_lab.recipes.base import Fleet, Model
from moerge_lab.recipes.models import Loaded
from moerge_lab.recipes.published import body_by
from moerge_lab.recipes.tuning import WINDOWS, choose, choose_scale
from support.models import expert, on_body
from support.recipes import fleet, only

SCALES = (1 / 12, 1 / 6, 1 / 3, 1 / 2)
"""Of three experts."""


def tuned(on: Fleet, texts: Sequence[Sequence[Window]]) -> Fleet:
    pairs = zip(on.domains, texts, strict=True)
    return replace(on, domains=[replace(domain, tuning=cut) for domain, cut in pairs])


def wanting(best: float) -> Callable[[float], Losses]:
    """Losses that are least at a value for texts of domain d0, a little higher there for those of others."""

    def build(value: float) -> Losses:
        def losses(rows: Rows) -> Tensor:
            wrong = abs(value - best) if rows.domain == "d0" else 0.1 * (value == best)
            return torch.full((rows.ids.shape[0], rows.ids.shape[1] - 1), wrong)

        return losses

    return build


def test_tuning_minimises_loss_with_equal_weight_per_domain(tmp_path: Path) -> None:
    """By tokens the long texts of the others would outweigh the short one of d0."""
    short, long = windows(all_counted([[1, 2, 3]]), 8, 4), windows(all_counted([list(range(90))]), 8, 4)
    on = tuned(fleet(tmp_path), [short, long, []])
    assert choose(on, {"n": -1}, "n", [1, 2, 3], 1, wanting(2)) == {"n": 2}


def test_given_option_is_kept_and_default_used_without_text(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    assert choose(on, {"n": 3}, "n", [1, 2], 1, wanting(2)) == {}
    assert choose(on, {"n": -1}, "n", [1, 2], 1, wanting(2)) == {"n": 1}
    assert choose_scale(on, {"scale": -1}, wanting(2)) == {"scale": 1 / 3}
    some = tuned(on, [windows(all_counted([[1, 2, 3]]), 8, 4)] * 3)
    assert choose_scale(some, {"scale": -1}, wanting(0.17)) == {"scale": 1 / 6}


def mean_loss(model: torch.nn.Module | Model, ids: list[int]) -> float:
    network = model.model if isinstance(model, Loaded) else model
    assert isinstance(network, torch.nn.Module)
    with torch.inference_mode():
        return float(network(torch.tensor([ids]), labels=torch.tensor([ids])).loss)


@pytest.mark.parametrize("name", ["ties", "dare", "task-arithmetic"])
def test_task_vector_scale_minimises_loss_on_tuning_text(tmp_path: Path, name: str) -> None:
    on = fleet(tmp_path)
    texts = [[(7 * place + slot) % 250 for place in range(30)] for slot in range(3)]
    on = tuned(on, [windows(all_counted([text]), 64, 32) for text in texts])
    result = {}
    for scale in SCALES:
        model = only(f"{name}:scale={scale!r}", on)
        assert model.chosen == {}
        result[scale] = sum(mean_loss(model, text) for text in texts)
    best = min(result, key=result.__getitem__)
    chosen = only(name, on)
    assert chosen.chosen == {"scale": best}
    assert sum(mean_loss(chosen, text) for text in texts) == pytest.approx(result[best])


def test_body_scale_minimises_loss_with_own_mlps_and_heads(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    texts = [[(7 * place + slot) % 250 for place in range(30)] for slot in range(3)]
    on = tuned(on, [windows(all_counted([text]), 64, 32) for text in texts])
    result = {}
    for scale in SCALES:
        body = body_by(on, "ties", {"retain": 0.8, "scale": scale})
        models = [domain_model(*on_body(domain.expert, body.path))[0] for domain in on.domains]
        result[scale] = sum(mean_loss(model, text) for model, text in zip(models, texts, strict=True))
    assert only("dume-ties", on).chosen == {"scale": min(result, key=result.__getitem__)}


def continued(folder: Path, begun: list[int], tokens: int) -> list[int]:
    """A text, and after it the expert's likeliest continuation."""
    ids, model = torch.tensor([begun]), expert_model(DenseFiles(folder))
    with torch.inference_mode():
        for _ in range(tokens):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(dim=2)], dim=1)
    result: list[int] = ids[0].tolist()
    return result


def test_windows_are_chosen_by_what_the_tuning_text_is_like(tmp_path: Path) -> None:
    """A short window is best for texts that change their subject; for others all of the text is as good."""
    experts = [expert(tmp_path / str(seed), seed, apart=0.02, initializer_range=0.2) for seed in (1, 2)]
    pure = [continued(folder, [17], 120) for folder in experts]
    mixed = [continued(experts[1 - slot], text[:60], 60) for slot, text in enumerate(pure)]
    on = fleet(tmp_path / "fleet", 2)
    domains = [replace(domain, expert=folder) for domain, folder in zip(on.domains, experts, strict=True)]
    for texts in (pure, mixed):
        here = tuned(replace(on, domains=domains), [windows(all_counted([text]), 200, 100) for text in texts])
        rows = Rows(torch.tensor(texts), [121, 121], "")
        for name in ("btm", "btm-cached"):
            result = {float(w): float(only(f"{name}:window={w}", here).losses(rows).mean()) for w in WINDOWS}
            assert only(name, here).chosen == {"window": min(result, key=result.__getitem__)}, result
            assert (result[0] - min(result.values()) < 1e-4) == (texts is pure), result
        assert "window" in only("expert-routing", here).chosen


def test_windows_are_whole_numbers(tmp_path: Path) -> None:
    for given in ("btm:window=1.5", "expert-routing:window=-2"):
        with pytest.raises(MoergeError, match="window is"):
            only(given, fleet(tmp_path / given.partition(":")[0]))
