"""Dense models: each expert alone, and all parameters of all experts, those of the MLPs too, merged into one."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeVar

import torch
from pydantic import BaseModel, ValidationError
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.config import read_config
from moerge.models.dense import dense_model, place
from moerge.models.families import family_of
from moerge.models.reader import Checkpoint
from moerge.recipes.base import Fleet, Model, Options, Recipe
from moerge.recipes.models import Loaded
from moerge.trunk.merge import Method, Piece, elementwise_method, merge_plan
from moerge_proto.trunks import TrunkOptions

Checked = TypeVar("Checked", bound=BaseModel)
EXPERTS = "experts"
"""The recipe that scores are normalised by."""
TASK_VECTORS: Mapping[str, float] = {"retain": 0.8, "scale": 1 / 3}
"""The share of a task vector that is kept, and what their sum is times (MergeME appendix)."""


def expert_row(domain: str) -> str:
    """The row of a domain's own dense expert."""
    return f"{domain} expert"


def method_of(name: str, fleet: Fleet, options: Options) -> Method:
    """A trunk method of that name, over the fleet's experts; `weighted` by how many tokens their statistics have."""
    weights = [float(sum(map(len, domain.statistics))) for domain in fleet.domains]
    base = None if fleet.base is None else Checkpoint(fleet.base)
    numbers = {each: options[each] for each in TASK_VECTORS if each in options} | {"seed": fleet.seed}
    if name == "task-arithmetic":  # what DARE is when nothing falls
        return elementwise_method("dare", checked(TrunkOptions, {**numbers, "retain": 1}), weights, base)
    return elementwise_method(name, checked(TrunkOptions, numbers), weights, base)


def checked(kind: type[Checked], fields: Mapping[str, object]) -> Checked:
    """The options of a merge or a solve.

    Raises:
        MoergeError: a number is out of its bounds.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        [first, *_] = error.errors()
        raise MoergeError(f"{first['loc'][0]} is {first['input']}: {first['msg']}", where="--recipe") from error


def merged_model(fleet: Fleet, method: Method) -> PreTrainedModel:
    """The dense model whose every parameter is merged by the method."""
    config = read_config(fleet.domains[0].expert)
    family, layers = family_of(config), config.num_hidden_layers
    experts = [Checkpoint(domain.expert) for domain in fleet.domains]
    state = {plan.name: plan.compute().float() for plan in merge_plan(experts, family, layers, method)}
    for name in family.dense_mlp_names(layers):
        tensors = [each.tensor(name) for each in experts]
        state[name] = method(Piece(name, 0, range(len(experts)), tensors, torch.float32))
    model = dense_model(config, state, torch.float32)
    place(model, fleet.device)
    return model


def _experts(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    for domain in fleet.domains:
        yield expert_row(domain.name), Loaded.of(domain.expert, fleet.device)


def _merged(row: str, method: str, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    yield row, Loaded(merged_model(fleet, method_of(method, fleet, options)))


RECIPES = (
    Recipe(EXPERTS, "DUME table 2", _experts, uses_text=False),
    Recipe("averaging", "DUME table 2", partial(_merged, "averaging", "average"), uses_text=False),
    Recipe("weighted", "shares of the domains' tokens", partial(_merged, "weighted", "weighted")),
    Recipe(
        "task-arithmetic",
        "Ilharco et al. 2022, section 2; 0.4 as TIES section 4.1 has it",
        partial(_merged, "task-arithmetic", "task-arithmetic"),
        {"scale": 0.4},
        uses_text=False,
        needs_base=True,
    ),
    Recipe("ties", "MergeME 3.1", partial(_merged, "ties", "ties"), TASK_VECTORS, uses_text=False, needs_base=True),
    Recipe(
        "dare",
        "MergeME 3.1",
        partial(_merged, "dare", "dare"),
        TASK_VECTORS,
        uses_text=False,
        drawn=True,
        needs_base=True,
    ),
)
