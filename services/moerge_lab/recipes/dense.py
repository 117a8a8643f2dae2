"""Dense models: each expert alone, and experts merged with all parameters, including MLPs."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel, ValidationError
from transformers import PreTrainedModel

from moerge.bodies.lineage import BodyOptions
from moerge.bodies.methods.method import MethodInputs
from moerge.bodies.methods.registry import METHODS
from moerge.bodies.pieces import merge_plan
from moerge.errors import MoergeError
from moerge.models.dense import dense_model, place
from moerge.models.dense_files import DenseFiles
from moerge.models.reader import Checkpoint
from moerge_lab.recipes.base import Fleet, Model, Options, Recipe, number
from moerge_lab.recipes.likelihoods import Dense
from moerge_lab.recipes.models import Loaded
from moerge_lab.recipes.tuning import CHOOSE, choose_scale
from moerge_proto.bodies import BodyMethod

Checked = TypeVar("Checked", bound=BaseModel)
EXPERTS = "experts"
"""The recipe that normalises scores."""
TASK_VECTORS: Options = {"retain": 0.8, "scale": CHOOSE}
"""The kept share of a task vector, and the factor of their sum: 1 / 3 for three in MergeME's appendix."""


def expert_row(domain: str) -> str:
    return f"{domain} expert"


def body_options(method: BodyMethod, fleet: Fleet, options: Options) -> BodyOptions:
    """The options of a body method, without the base. Weights are the domains' tokens of statistics."""
    tokens = {f"d{slot}": sum(map(len, domain.statistics)) for slot, domain in enumerate(fleet.domains)}
    given = {**options, "random_seed": fleet.seed, "weights": tokens}
    return checked(BodyOptions, {name: value for name, value in given.items() if name in METHODS[method].takes})


def base_of(method: BodyMethod, fleet: Fleet) -> Path | None:
    """The base model's folder, if the method takes one."""
    return fleet.base if takes_base(method) else None


def takes_base(method: str) -> bool:
    """Tell whether a body method takes the base model."""
    return METHODS[method].takes_base


def checked(kind: type[Checked], fields: Mapping[str, object]) -> Checked:
    """The options of a merge or a solve; an error if a number is out of its bounds."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        [first, *_] = error.errors()
        raise MoergeError(f"{first['loc'][0]} is {first['input']}: {first['msg']}", where="`recipe`") from error


def merged_model(fleet: Fleet, method: BodyMethod, options: Options) -> PreTrainedModel:
    """The dense model whose every parameter is merged by an elementwise method."""
    if (rule := METHODS[method].rule) is None:
        raise TypeError(f"{method} doesn't merge MLPs")
    base, experts = base_of(method, fleet), [DenseFiles(domain.expert) for domain in fleet.domains]
    inputs = MethodInputs(
        experts=experts,
        domains=[f"d{slot}" for slot in range(len(experts))],
        options=body_options(method, fleet, options),
        base=None if base is None else Checkpoint(base),
    )
    names = {name for expert in experts for name in expert.checkpoint.specs}
    plans = merge_plan([expert.checkpoint for expert in experts], names, rule(inputs))
    state = {plan.name: plan.compute().float() for plan in plans}
    model = dense_model(experts[0].config, state, torch.float32)
    place(model, fleet.device)
    return model


def _experts(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    for domain in fleet.domains:
        yield expert_row(domain.name), Dense(domain.expert, fleet.device, fleet.shared.likelihoods)


def _merged(row: str, method: BodyMethod, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    yield row, Loaded(merged_model(fleet, method, options))


def _scaled(row: str, method: BodyMethod, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    def build(scale: float) -> Loaded:
        return Loaded(merged_model(fleet, method, {**options, "scale": scale}))

    chosen = choose_scale(fleet, options, lambda scale: build(scale).losses)
    model = build(number({**options, **chosen}, "scale"))
    model.chosen = chosen
    yield row, model


def _task_arithmetic(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    """DARE without dropping."""
    return _scaled("task-arithmetic", "dare", fleet, {**options, "retain": 1})


_on_base = partial(Recipe, uses_text=False, needs_base=True)
RECIPES = (
    Recipe(EXPERTS, "DUME table 2", _experts, uses_text=False, any_architecture=True),
    Recipe("averaging", "DUME table 2", partial(_merged, "averaging", "average"), uses_text=False),
    Recipe("weighted", "shares of the domains' tokens", partial(_merged, "weighted", "weighted")),
    _on_base("task-arithmetic", "Ilharco et al. 2022, section 2", _task_arithmetic, {"scale": CHOOSE}),
    _on_base("ties", "MergeME 3.1", partial(_scaled, "ties", "ties"), TASK_VECTORS),
    replace(_on_base("dare", "MergeME 3.1", partial(_scaled, "dare", "dare"), TASK_VECTORS), drawn=True),
)
