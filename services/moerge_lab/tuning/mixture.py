"""The request to train a mixture of dense models."""

from collections.abc import Mapping
from pathlib import Path

from moerge.errors import MoergeError
from moerge.models.expert_folder import DenseExpert, check_expert, expert_files
from moerge.progress import Progress
from moerge_lab.recipes.base import SEED, Options, Recipe
from moerge_lab.recipes.mixtures import RECIPES, mixture, trained_parameters
from moerge_lab.recipes.registry import parse
from moerge_lab.training.parameters import Which
from moerge_lab.tuning.request import Request, Wanted, dtype_of, read_inputs, require_options
from moerge_proto.records import MixtureMember, TunedMixture

HOW_NEW = (
    f"give `base` and `expert` NAME=DIR for {', '.join(recipe.name for recipe in RECIPES if recipe.needs_base)}, "
    f"or `expert` NAME=DIR for {', '.join(recipe.name for recipe in RECIPES if not recipe.needs_base)}"
)
"""The arguments for a mixture."""
_ELSEWHERE = {"train": "`tokens`", "upweight": "`weight`", SEED: "`base`"}
"""Options of a recipe -> the field in their place."""


def read_mixture(base: Path | None, experts: Mapping[str, Path], wanted: Wanted, progress: Progress) -> Request:
    """Reads and checks everything that the training of a mixture needs.

    Args:
        base: folder of the seed model; None: without one, if the recipe allows that.
        experts: name -> folder.

    Raises:
        MoergeError: a model, recipe, text or setting is unsuitable; names it and the remedy.
    """
    recipe, which, options = _recipe(wanted.recipe)
    if not experts or (base is None and recipe.needs_base):
        needs = "a seed model and experts" if recipe.needs_base else "experts"
        missing = "`base`" if base is None and recipe.needs_base else "`expert`"
        raise MoergeError(f"a new mixture needs {needs}", where=missing, todo=f"{HOW_NEW}; or name a version's folder")
    if SEED in experts:
        raise MoergeError(f"{SEED} is already a member", where="`expert`", todo="choose another name")
    seed = {} if base is None else {SEED: base}
    members = {**seed, **experts} if recipe.needs_base else {**experts, **seed}
    models = [DenseExpert(name, folder) for name, folder in members.items()]
    for model in models:
        check_expert(model, None if recipe.any_architecture else models[0], model.domain)
    longest = min(int(model.config.max_position_embeddings) for model in models)
    build = mixture(recipe.name, members, options, wanted.seed)
    needed = {name: name != SEED for name in members}
    inputs = read_inputs(wanted, options, needed, "mixture", models[0].folder, longest, progress)
    for model in models:
        expert_files(model)  # refuses an adapter
    record = TunedMixture(
        members=[MixtureMember(name=model.domain, digest=model.digest) for model in models], **inputs.fields
    )
    return Request(record, inputs.rows, which, build, models[0].folder, dtype_of(members.values()))


def _recipe(spec: str) -> tuple[Recipe, Which, Options]:
    """A mixture's recipe, the parameters that it trains, and its options."""
    recipe, options, _ = parse(spec)
    names = [item.name for item in RECIPES]
    if recipe.trains is None or recipe.name not in names:
        todo = f"use one of: {', '.join(names)}"
        if recipe.trains is not None and "start" in options:
            todo += f"; or name a version's folder, which {recipe.name} trains"
        raise MoergeError(f"{recipe.name} doesn't train a new mixture", where=f"`recipe` {spec}", todo=todo)
    instead = " and ".join(field for name, field in _ELSEWHERE.items() if name in options)
    options = {name: value for name, value in options.items() if name not in _ELSEWHERE}
    require_options(spec, options, f"use {instead}")
    return recipe, trained_parameters(recipe.trains, options), options
