"""A tiny fleet, and recipes' models of it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from moerge.scoring.perplexity import Rows
from moerge_lab.recipes.base import Domain, Fleet, Model
from moerge_lab.recipes.models import FromLogits, Loaded
from moerge_lab.recipes.registry import parse
from support.models import expert
from support.versions import contributed_rows


def fleet(folder: Path, domains: int = 3, **settings: Any) -> Fleet:
    """Random experts of domains d0, d1, …, their seed model, and texts of unequal lengths."""
    result = []
    for slot in range(domains):
        rows = contributed_rows(slot)
        path = expert(folder / f"expert-{slot}", seed=slot + 1, apart=0.02, **settings)
        pooled = torch.randint(97 + 5 * slot, 110 + 5 * slot, (6, 16), generator=torch.Generator().manual_seed(slot))
        result.append(Domain(f"d{slot}", path, rows[slot:], rows[:slot], training=pooled))
    work = folder / "work"
    work.mkdir()
    return Fleet(result, expert(folder / "base", seed=99, apart=0.02, **settings), 0, work)


def built(spec: str, on: Fleet) -> list[tuple[str, Model]]:
    """All models of a recipe, in an empty folder."""
    shutil.rmtree(on.work)
    on.work.mkdir()
    recipe, options, _ = parse(spec)
    return list(recipe.build(on, options))


def only(spec: str, on: Fleet) -> Model:
    """The only model of a recipe."""
    [(_, model)] = built(spec, on)
    return model


def logits(model: Model, rows: Rows) -> Tensor:
    """The logits of a model that has them."""
    assert isinstance(model, FromLogits)
    return model.logits(rows)


def with_average_head(model: PreTrainedModel, experts: Sequence[Path]) -> PreTrainedModel:
    """The dense model, with the mean of the experts' last norms and heads."""
    for module, name in ((model.model.norm, "model.norm.weight"), (model.lm_head, "lm_head.weight")):
        heads = [load_file(expert / "model.safetensors")[name].double() for expert in experts]
        module.weight = torch.nn.Parameter(torch.stack(heads).mean(dim=0).float())
    return model


def state(model: Model) -> dict[str, Tensor]:
    """The tensors of a model of transformers."""
    assert isinstance(model, Loaded)
    return model.model.state_dict()
