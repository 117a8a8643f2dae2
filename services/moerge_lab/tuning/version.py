"""The request to train a version."""

from functools import partial
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.models.config import read_config
from moerge.models.dense_files import DenseFiles
from moerge.models.families.registry import host_of
from moerge.models.reader import Checkpoint
from moerge.progress import Progress
from moerge.scoring.perplexity import load
from moerge_lab.recipes.registry import RECIPES, parse
from moerge_lab.training.parameters import require_trainable
from moerge_lab.tuning.request import Request, Wanted, dtype_of, read_inputs, require_options
from moerge_proto.records import RECORD_FILE, TunedMixture, TunedModel, read_record
from moerge_proto.version_files import CONFIG_FILE, GENERATION, TOKENIZER_FILES
from moerge_proto.versions import Lineage

OPTIONS = ("routing", "balance", "rate", "batch")
"""A recipe's options that apply to a version; the others choose a start."""


def read_version(version: Path, wanted: Wanted, progress: Progress) -> Request:
    """Reads and checks everything that the training of a version's folder needs."""
    recipe, options, _ = parse(wanted.recipe)
    names = [item.name for item in RECIPES.values() if item.trains and "start" in item.options]
    if recipe.trains is None or recipe.name not in names:
        todo = f"use one of: {', '.join(names)}"
        raise MoergeError(f"{recipe.name} doesn't train a version", where="`recipe`", todo=todo)
    options = {name: options[name] for name in OPTIONS}
    require_options(wanted.recipe, options, "the training starts from the version")
    parent, version = _parent(version), version.absolute()
    config = read_config(version)
    host_of(config)
    require_trainable(config, recipe.trains)
    needed, longest = dict.fromkeys(parent.domains, True), int(config.max_position_embeddings)
    inputs = read_inputs(wanted, options, needed, "version", version, longest, progress)
    record = TunedModel(parent=parent, parent_files=_digests(version, progress), **inputs.fields)
    return Request(record, inputs.rows, recipe.trains, partial(load, version), version, dtype_of([version]))


def _parent(version: Path) -> Lineage:
    record = read_record(version)
    if isinstance(record, TunedModel | TunedMixture):
        raise MoergeError("is a tuned model", where=str(version), todo="tune its parent, with more tokens")
    if not isinstance(record, Lineage):
        todo = "name the folder of a version, written by moerge pull or moerge merge"
        raise MoergeError("not the record of a version", where=str(version / RECORD_FILE), todo=todo)
    return record


def _digests(folder: Path, progress: Progress) -> dict[str, str]:
    """SHA-256 of a folder's weights, config and tokenizer, by name."""
    weights = {spec.file.name for spec in Checkpoint(folder).specs.values()}
    small = map(DenseFiles(folder).side_file, (CONFIG_FILE, GENERATION, *TOKENIZER_FILES))
    paths = sorted({folder / name for name in weights} | {path for path in small if path.is_file()})
    digests = dict[str, str]()
    with progress.track(f"checking {folder.name}", sum(path.stat().st_size for path in paths), "B") as tracker:
        for path in paths:
            digests[path.name] = file_sha256(path)
            tracker.advance(path.stat().st_size)
    return digests
