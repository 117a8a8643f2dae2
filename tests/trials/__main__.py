"""`python -m trials [--preset demo] [--training-seeds 1,2] [GROUP or NAME ...]`: constants and parts of `recommended`.

Rows are the recommended recipe with one change, in the groups `defaults`, `constants`, `fitting` and `limits`. They
are scored on text of the tuning split, so no choice depends on the held-out text that tables score. Each training seed
trains the preset's experts anew.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from sys import maxsize
from unittest.mock import patch

from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from moerge.experts import fitting as fit
from moerge.files import atomic_file, cache_folder
from moerge.merging.assemble import fitted
from moerge.merging.local import LocalTrunk
from moerge.models.families import EMBEDDING
from moerge.models.reader import Checkpoint
from moerge.progress import progress
from moerge.scoring import routers as routing
from moerge.scoring.perplexity import Rows, load, logits
from moerge.scoring.routers import routers
from moerge.trunk import least_squares
from moerge_lab.demo import corpora
from moerge_lab.recipes import published, recommended
from moerge_lab.recipes.base import Fleet, Model, Options, Recipe, Shared
from moerge_lab.recipes.models import FromLogits, Routed, active_parameters
from moerge_lab.recipes.registry import parse
from moerge_lab.table.measure import Settings, measure
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.table import Run
from moerge_lab.table.texts import read_elsewhere, read_texts
from moerge_proto.trunks import TrunkMethod

DEFAULT, FITTED = "recommended", "recommended:fit=1"


def run(spec: str, label: str = "") -> Run:
    """An unchanged recipe."""
    recipe, options, own = parse(spec)
    return Run(recipe, options, label or own)


def changed(label: str, spec: str, module: object, name: str, value: object) -> Run:
    """A recipe with a replaced function or constant of a module."""
    whole = run(spec, label)

    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        with patch.object(module, name, value):
            yield from whole.recipe.build(replace(fleet, shared=Shared()), options)

    return replace(whole, recipe=replace(whole.recipe, build=build))


class PerDomain(FromLogits):
    """Each text goes to its domain's own dense model."""

    reads_domain = True

    def __init__(self, models: Mapping[str, PreTrainedModel]) -> None:
        self._models = models
        self.active_parameters = active_parameters(next(iter(models.values())))

    def logits(self, rows: Rows) -> Tensor:
        return logits(self._models[rows.domain], rows)


class FirstByDomain(FromLogits):
    """A version whose first layer sends each text to its own domain's expert; the other layers route."""

    reads_domain = True

    def __init__(self, routed: Routed, domains: Sequence[str]) -> None:
        self._model, self._domains = routed.model, list(domains)
        self.active_parameters = routed.active_parameters

    def logits(self, rows: Rows) -> Tensor:
        first = patch.object(routing, "routers", lambda model: routers(model)[:1])
        with first, routing.forced(self._model, self._domains.index(rows.domain)):
            return logits(self._model, rows)


_trunk_of = published.trunk_of


def trunk_by(method: TrunkMethod) -> Callable[..., LocalTrunk]:
    """Makes the trunk by this method instead of the recipe's own."""
    return lambda fleet, own, options: _trunk_of(fleet, method, options)


def oracle_with_own(part: str, fleet: Fleet) -> Model:
    """The oracle with fitted MLPs, and each domain's own expert's tensors with `part` in their names."""
    _, options, _ = parse(FITTED)
    settings = published.settings_of(fleet, recommended.PARTS.recipe(options), options)
    made = published.trunk_of(fleet, "regmean", options)
    merged = Checkpoint(made.path)
    models = {}
    for slot, (domain, expert) in enumerate(zip(fleet.domains, published.experts_of(fleet), strict=True)):
        dense = Checkpoint(domain.expert)
        state = {name: merged.tensor(name) for name in merged.specs}
        for name in filter(lambda name: part in name, merged.specs):
            state[name] = dense.tensor(name if name in dense.specs else EMBEDDING)
        trunk = fleet.work / f"trunk-{slot}"
        save_file(state, trunk)
        text = published.Documents.of(domain.statistics, options)
        models[domain.name] = load(fitted(expert, text, replace(made, path=trunk), settings, fleet.work).folder)
    return PerDomain(models)


def first_by_domain(spec: str, fleet: Fleet) -> Model:
    recipe, options, _ = parse(spec)
    [(_, model)] = recipe.build(fleet, options)
    assert isinstance(model, Routed)
    return FirstByDomain(model, [domain.name for domain in fleet.domains])


def limit(label: str, make: Callable[[Fleet], Model]) -> Run:
    """A row that uses each text's domain."""

    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        yield label, make(fleet)

    return Run(Recipe(label, "", build), {}, label)


DEFAULTS = (
    *map(run, ("dume", "regmean", DEFAULT, "recommended-oracle", FITTED)),
    changed("averaged trunk", DEFAULT, published, "trunk_of", trunk_by("average")),
    run("recommended:routers=ridge", "the paper's routers"),
    *map(run, ("recommended:lambda=0.0001", "recommended:lambda=0.01", "recommended:k=2", "recommended:rare_below=0")),
)
CONSTANTS = (
    *(
        changed(f"shrinkage {item:g}", DEFAULT, least_squares, "SHRINKAGE_TO_AVERAGE", item)
        for item in (0.001, 0.01, 1.0, 10.0)
    ),
    *(changed(f"evenness {item:g}", DEFAULT, least_squares, "EVENNESS", item) for item in (0.0, 0.1, 2.0)),
)
FITTING = (
    run(FITTED),
    changed("head solved once", FITTED, published, "trunk_of", trunk_by("regmean")),
    changed("first matrices as they were", FITTED, fit, "_solve_first", lambda *given: None),
    changed("last layer to the residual", FITTED, fit._Fitting, "_through_head", lambda own: own._own.placed),
)
LIMITS = (
    limit("first layer by the domain", partial(first_by_domain, DEFAULT)),
    run("recommended-oracle:fit=1"),
    limit("fitted oracle with own head", partial(oracle_with_own, "lm_head")),
    limit("fitted oracle with own attention", partial(oracle_with_own, "self_attn")),
)
GROUPS = {"defaults": DEFAULTS, "constants": CONSTANTS, "fitting": FITTING, "limits": LIMITS}


def named(names: Sequence[str], against: str) -> list[Run]:
    """The dense experts, the row to compare with, and the rows of these groups or labels; default: all."""
    every = {item.label: item for group in GROUPS.values() for item in group}
    wanted = [item for name in (against, *(names or GROUPS)) for item in GROUPS.get(name) or (every[name],)]
    return list({item.label: item for item in (run("experts"), *wanted)}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="GROUP or NAME")
    parser.add_argument("--preset", default="demo", choices=sorted(PRESETS))
    parser.add_argument("--training-seeds", default="1")
    parser.add_argument("--tokens", type=int, default=maxsize, help="scored tokens of each domain; default: all")
    parser.add_argument("--device", help="cpu or cuda; default: the preset's")
    parser.add_argument("--against", default=DEFAULT, help="row to compare others with")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    runs, preset, console = named(chosen.names, chosen.against), PRESETS[chosen.preset], Console()
    cut, folder = replace(preset.cut, tokens=chosen.tokens), cache_folder()
    averages, records = dict[str, list[float]](), dict[str, object]()
    for seed in map(int, chosen.training_seeds.split(",")):
        trained = replace(preset, training=replace(preset.training, seed=seed))
        sources, base = trained.sources(folder, progress(), chosen.device)
        texts = {name: read_texts(name, source, cut, "tuning") for name, source in sources.items()}
        abroad = read_elsewhere(base, [str(corpora.write_elsewhere(folder / "texts"))], cut, "tuning")
        settings = Settings(base, 1, preset.statistics_tokens, chosen.device or preset.device)
        table = replace(measure(runs, texts, settings, progress(), abroad), against=chosen.against)
        for item in table.render(console):
            console.print(item, highlight=False, markup=False)
        for row in table.rows[len(sources) :]:
            averages.setdefault(row.name, []).append(table.average(row).mean)
        records[f"seed {seed}"] = table.to_json()
    print(f"| average, by training seed | {' | '.join(records)} | mean |")
    print("|---" * (2 + len(records)) + "|")
    for label, figures in averages.items():
        print(f"| {label} | {' | '.join(f'{figure:.1f}' for figure in figures)} | {fmean(figures):.1f} |")
    if chosen.json:
        with atomic_file(chosen.json) as out:
            out.write(json.dumps(records, indent=2).encode())


if __name__ == "__main__":
    main()
