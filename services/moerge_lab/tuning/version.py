"""The request to train a version, and the published names of its trained tensors."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor
from transformers import PretrainedConfig

from moerge.errors import MoergeError
from moerge.models.config import read_config
from moerge.models.families import Family, published_family
from moerge.models.reader import Checkpoint
from moerge.progress import Progress
from moerge_lab.recipes.base import number
from moerge_lab.recipes.registry import RECIPES, parse
from moerge_lab.recipes.trained import routing_of
from moerge_lab.training.routing import Routing, experts_per_token
from moerge_lab.tuning.request import Request, Texts, Wanted, digests_of, model_files, options_of, read_inputs
from moerge_proto.records import RECORD_FILE, TunedMixture, TunedModel, read_record
from moerge_proto.versions import Lineage

OPTIONS = ("routing", "balance", "rate", "batch")
"""A recipe's options that apply to a version; the others choose a start."""
RECIPE_NAMES = [each.name for each in RECIPES.values() if each.trains and "start" in each.options]
"""Recipes that train a version."""
_TOP_K = "num_experts_per_tok"


@dataclass(frozen=True)
class VersionRequest(Request):
    """A checked request to train a version.

    Attributes:
        version: the parent's folder.
    """

    record: TunedModel
    version: Path

    @property
    def routing(self) -> Routing:
        return routing_of(self.record.options)

    @property
    def balance(self) -> float:
        return number(self.record.options, "balance")

    def start(self, work: Path) -> Path:
        return self.version.absolute()

    def config(self, start: Path) -> str:
        text = (start / "config.json").read_bytes().decode()
        content, top_k = json.loads(text), experts_per_token(self.routing, len(self.record.parent.domains))
        if content[_TOP_K] == top_k:
            return text
        return json.dumps({**content, _TOP_K: top_k}, indent=2, sort_keys=True) + "\n"

    def tensors(self, trained: Checkpoint, start: Path) -> Mapping[str, Callable[[], Tensor]]:
        config = read_config(start)
        return dict(_published(trained, published_family(config), config))


def read_version(version: Path, texts: Texts, wanted: Wanted, progress: Progress) -> VersionRequest:
    """Reads and checks everything that the training of a version needs.

    Args:
        version: folder of a published version.

    Raises:
        MoergeError: version, recipe, text or setting is unsuitable; names it and the remedy.
    """
    recipe, _, _ = parse(wanted.recipe)
    if recipe.trains is None or recipe.name not in RECIPE_NAMES:
        todo = f"use one of: {', '.join(RECIPE_NAMES)}"
        raise MoergeError(f"{recipe.name} doesn't train a version", where="--recipe", todo=todo)
    options = options_of(wanted.recipe, OPTIONS, "the training starts from the version")
    parent, config = _parent(version), read_config(version)
    published_family(config)
    needed, longest = dict.fromkeys(parent.domains, True), int(config.max_position_embeddings)
    inputs = read_inputs(wanted, options, texts, needed, "version", version, longest, progress)
    files = digests_of(model_files(version), "the version", progress)
    record = TunedModel(parent=parent, parent_files=files, **inputs.fields)
    return VersionRequest(record, inputs.rows, recipe.trains, inputs.steps, version)


def _parent(version: Path) -> Lineage:
    record = read_record(version)
    if isinstance(record, TunedModel | TunedMixture):
        raise MoergeError("is a tuned model", where=str(version), todo="tune its parent, with more tokens")
    if not isinstance(record, Lineage):
        todo = "name the folder of a version, written by moerge pull or moerge merge"
        raise MoergeError("not the record of a version", where=str(version / RECORD_FILE), todo=todo)
    return record


def _published(
    trained: Checkpoint, family: Family, config: PretrainedConfig
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """The published name of every trained tensor; the stock class has all experts of a layer in two tensors."""
    names, apart = set(trained.specs), set[str]()
    for layer in range(config.num_hidden_layers):
        module = family.router_module.format(layer=layer)
        experts = f"{module.rpartition('.')[0]}.experts"
        if (router := f"{module}.weight") in names:
            yield family.router.format(layer=layer), partial(trained.tensor, router)
        for expert in range(getattr(config, family.experts)):
            gate, up, down = (
                name.format(layer=layer, expert=expert) for block in family.mlp.values() for name in block
            )
            for source, targets in (("gate_up_proj", (gate, up)), ("down_proj", (down,))):
                if (name := f"{experts}.{source}") in names:
                    for number, target in enumerate(targets):
                        yield target, partial(_block, trained, name, expert, number, len(targets))
        apart |= {router, f"{experts}.gate_up_proj", f"{experts}.down_proj"}
    for name in sorted(names - apart):
        yield name, partial(trained.tensor, name)


def _block(trained: Checkpoint, name: str, expert: int, number: int, count: int) -> Tensor:
    return trained.tensor(name)[expert].chunk(count)[number]
