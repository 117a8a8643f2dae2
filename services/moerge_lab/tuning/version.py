"""The request to train a version."""

from functools import partial
from pathlib import Path

from moerge.errors import MoergeError
from moerge.models.config import read_config
from moerge.models.families import published_family
from moerge.progress import Progress
from moerge.scoring.perplexity import load
from moerge_lab.recipes.registry import RECIPES, parse
from moerge_lab.tuning.request import Request, Wanted, dtype_of, model_files, options_of, read_inputs
from moerge_proto.records import RECORD_FILE, TunedMixture, TunedModel, read_record
from moerge_proto.versions import Lineage

OPTIONS = ("routing", "balance", "rate", "batch")
"""A recipe's options that apply to a version; the others choose a start."""
RECIPE_NAMES = [recipe.name for recipe in RECIPES.values() if recipe.trains and "start" in recipe.options]
"""Recipes that train a version."""


def read_version(version: Path, wanted: Wanted, progress: Progress) -> Request:
    """Reads and checks everything that the training of a version needs.

    Args:
        version: folder of a published version.

    Raises:
        MoergeError: version, recipe, text or setting is unsuitable; names it and the remedy.
    """
    recipe, _, _ = parse(wanted.recipe)
    if recipe.trains is None or recipe.name not in RECIPE_NAMES:
        todo = f"use one of: {', '.join(RECIPE_NAMES)}"
        raise MoergeError(f"{recipe.name} doesn't train a version", where="`recipe`", todo=todo)
    options = options_of(wanted.recipe, OPTIONS, "the training starts from the version")
    parent, version = _parent(version), version.absolute()
    config = read_config(version)
    published_family(config)
    needed, longest = dict.fromkeys(parent.domains, True), int(config.max_position_embeddings)
    inputs = read_inputs(wanted, options, needed, "version", version, longest, progress)
    record = TunedModel(parent=parent, parent_files=model_files(version, progress), **inputs.fields)
    return Request(record, inputs.rows, recipe.trains, partial(load, version), version, dtype_of([version]))


def _parent(version: Path) -> Lineage:
    record = read_record(version)
    if isinstance(record, TunedModel | TunedMixture):
        raise MoergeError("is a tuned model", where=str(version), todo="tune its parent, with more tokens")
    if not isinstance(record, Lineage):
        todo = "name the folder of a version, written by moerge pull or moerge merge"
        raise MoergeError("not the record of a version", where=str(version / RECORD_FILE), todo=todo)
    return record
