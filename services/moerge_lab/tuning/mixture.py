"""The request to train a mixture: a new one of dense models, or a BTS mixture with masked or further experts."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.config import read_config, require_same_config
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, check_expert, expert_files
from moerge.models.tokenizers import require_same_tokenizer
from moerge.progress import Progress
from moerge_lab.mixtures.bts import Bts, BtsConfig
from moerge_lab.recipes.base import SEED, Options, Recipe
from moerge_lab.recipes.mixtures import RECIPES, mixture, trained_parameters
from moerge_lab.recipes.registry import parse
from moerge_lab.training.parameters import Which
from moerge_lab.tuning.request import Request, Wanted, dtype_of, model_files, options_of, read_inputs
from moerge_proto.records import MixtureMember, TunedMixture, read_record

RECIPE_NAMES = [recipe.name for recipe in RECIPES]
"""Recipes that train a mixture."""
HOW_NEW = (
    f"give `base` and `expert` NAME=DIR for {', '.join(recipe.name for recipe in RECIPES if recipe.needs_base)}, "
    f"or `expert` NAME=DIR for {', '.join(recipe.name for recipe in RECIPES if not recipe.needs_base)}"
)
"""The arguments for a new mixture."""
STITCHED = "bts"
"""The recipe whose mixtures can be continued."""
_ELSEWHERE = {"train": "`tokens`", "upweight": "`weight`", SEED: "`base`"}
"""Options of a recipe -> the field in their place."""


def read_new(base: Path | None, experts: Mapping[str, Path], wanted: Wanted, progress: Progress) -> Request:
    """Reads and checks everything that the training of a new mixture needs.

    Args:
        base: folder of the seed model; None: without one, if the recipe allows that.
        experts: name -> folder.

    Raises:
        MoergeError: a model, recipe, text or setting is unsuitable; names it and the remedy.
    """
    recipe, which, options = _recipe(wanted.recipe, ())
    if not experts or (base is None and recipe.needs_base):
        needs = "a seed model and experts" if recipe.needs_base else "experts"
        missing = "`base`" if base is None and recipe.needs_base else "`expert`"
        raise MoergeError(f"a new mixture needs {needs}", where=missing, todo=HOW_NEW)
    _require_new_names(experts, [SEED])
    seed = {} if base is None else {SEED: base}
    members = {**seed, **experts} if recipe.needs_base else {**experts, **seed}
    models = [DenseExpert(name, folder) for name, folder in members.items()]
    first, reference = models[0].folder, None if recipe.any_architecture else models[0]
    for model in models:
        check_expert(model, reference, model.domain)
    needed = {name: name != SEED for name in members}
    longest = min(int(model.config.max_position_embeddings) for model in models)
    build = mixture(recipe.name, members, options, wanted.seed)
    inputs = read_inputs(wanted, options, needed, "mixture", first, longest, progress)
    record = TunedMixture(members=_members(models), **inputs.fields)
    return Request(record, inputs.rows, which, build, first, dtype_of(members.values()))


def read_stitched(
    folder: Path, experts: Mapping[str, Path], masked: Sequence[str], wanted: Wanted, progress: Progress
) -> Request:
    """Reads and checks everything that the training of a BTS mixture's stitch layers needs.

    Args:
        folder: of the mixture.
        experts: further experts, name -> folder.
        masked: experts to leave out.

    Raises:
        MoergeError: a model, recipe, text or setting is unsuitable; names it and the remedy.
    """
    parent = stitched(folder)
    if parent is None:
        todo = "omit `expert` and `mask`, or name a folder of moerge tune --recipe bts"
        raise MoergeError("not a BTS mixture, so no expert can be masked or added", where=str(folder), todo=todo)
    _, which, options = _recipe(wanted.recipe, ("stitches", "alternating", "hub"))
    config, folder = read_config(folder), folder.absolute()
    assert isinstance(config, BtsConfig)  # noqa: S101  # the record says so
    _require_new_names(experts, config.members)
    models, hub = [DenseExpert(name, expert) for name, expert in experts.items()], DenseFiles(folder)
    for model in models:
        check_expert(model, None, model.domain)
        require_same_config(config.dense_config, model.config, model.domain, "same")
        require_same_tokenizer(hub, model, model.domain, "same")
    hidden = _masked(config, [*config.masked, *masked])
    needed = {name: name != SEED and name not in hidden for name in [*config.members, *experts]}
    longest = int(config.dense_config.max_position_embeddings)
    inputs = read_inputs(wanted, options, needed, "mixture", folder, longest, progress)
    members, files = parent.members + _members(models), model_files(folder, progress)
    record = TunedMixture(members=members, masked=hidden, parent=parent, parent_files=files, **inputs.fields)
    build = partial(_joined, folder, experts, hidden)
    return Request(record, inputs.rows, which, build, folder, dtype_of([folder, *experts.values()]))


def stitched(folder: Path) -> TunedMixture | None:
    """The record of a BTS mixture's folder; None for another folder."""
    record = read_record(folder)
    return record if isinstance(record, TunedMixture) and record.recipe == STITCHED else None


def _joined(folder: Path, experts: Mapping[str, Path], masked: Sequence[str]) -> PreTrainedModel:
    model: Bts = Bts.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    for name, expert in experts.items():
        model = model.joined(name, expert)
    return model.masking(masked)


def _recipe(spec: str, chosen: Sequence[str]) -> tuple[Recipe, Which, Options]:
    """A mixture's recipe, the parameters that it trains, and its options without those that are chosen already.

    Raises:
        MoergeError: another kind of recipe, or an unsuitable option.
    """
    recipe, every, _ = parse(spec)
    names = [STITCHED] if chosen else RECIPE_NAMES
    if recipe.trains is None or recipe.name not in names:
        what = "continue a BTS mixture" if chosen else "train a new mixture"
        where, todo = f"`recipe` {spec}", f"use one of: {', '.join(names)}"
        if not chosen and recipe.trains is not None and "start" in every:
            todo += f"; or name a version's folder, which {recipe.name} trains"
        raise MoergeError(f"{recipe.name} doesn't {what}", where=where, todo=todo)
    allowed = [name for name in every if name not in (*_ELSEWHERE, *chosen)]
    instead = " and ".join(field for name, field in _ELSEWHERE.items() if name in every)
    options = options_of(spec, allowed, "the mixture has it already" if chosen else f"use {instead}")
    return recipe, trained_parameters(recipe.trains, options), options


def _require_new_names(experts: Mapping[str, Path], known: Sequence[str]) -> None:
    if taken := sorted(experts.keys() & set(known)):
        what = f"{', '.join(taken)} is already a member"
        raise MoergeError(what, where="`expert`", todo="choose another name")


def _masked(config: BtsConfig, names: Sequence[str]) -> list[str]:
    """The masked experts in their order.

    Raises:
        MoergeError: one isn't an expert of the mixture.
    """
    experts = config.members[1:]
    if unknown := sorted(set(names) - set(experts)):
        todo = f"use one of: {', '.join(experts)}"
        raise MoergeError(f"no expert {', '.join(unknown)}", where="`mask`", todo=todo)
    return [name for name in experts if name in names]


def _members(models: Sequence[DenseExpert]) -> list[MixtureMember]:
    """The members' names and digests.

    Raises:
        MoergeError: one is an adapter.
    """
    for model in models:
        expert_files(model)
    return [MixtureMember(name=model.domain, digest=model.digest) for model in models]
