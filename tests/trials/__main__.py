"""`python -m trials [--training-seeds 1,2,3] [--json FILE] [NAME ...]`: moerge's recipe with fitted MLPs and
a context head, without each of its parts, and with ideas that were tried beside it. The experts are the demo's; each
training seed makes them anew.
"""

import argparse
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from moerge.experts import fitting as fit
from moerge.files import atomic_file, cache_folder
from moerge.merging.local import LocalTrunk
from moerge.models.batches import batches
from moerge.models.config import read_config
from moerge.models.expert_folder import DenseExpert
from moerge.models.families import EMBEDDING
from moerge.models.reader import Checkpoint
from moerge.models.tokens import all_counted
from moerge.progress import progress
from moerge.recipes import own as moerge
from moerge.recipes import published as moerged
from moerge.recipes.base import Fleet, Member, Model, Options, Recipe
from moerge.recipes.models import FromLogits, Routed, active_parameters
from moerge.recipes.own import fitted
from moerge.recipes.registry import parse
from moerge.routers.discriminants import discriminants
from moerge.scoring import routers as routing
from moerge.scoring.perplexity import Rows, load, logits
from moerge.scoring.routers import routers
from moerge.table.measure import Settings, measure
from moerge.table.presets import PRESETS
from moerge.table.table import Run
from moerge.table.texts import read_texts
from moerge.trunk import context_head as context
from moerge.trunk import regmean
from moerge.trunk.average import average
from moerge_proto.trunks import TrunkMethod

Patches = Callable[[Fleet], Sequence[AbstractContextManager[object]]]
STATISTICS_TOKENS, TOKENS = 15_000, 4_000
FULL = "moerge:fit=1,context_head=1"


def changed(name: str, patches: Patches, spec: str = FULL) -> Run:
    """The recipe with parts of it replaced."""
    recipe, options, _ = parse(spec)

    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        with ExitStack() as stack:
            for each in patches(fleet):
                stack.enter_context(each)
            yield from recipe.build(fleet, options)

    return Run(replace(recipe, build=build), options, name)


def nothing(*given: object) -> None:
    """Takes the place of a step that is left out."""


_trunk_of = moerged.trunk_of


def averaged_trunk(fleet: Fleet, method: TrunkMethod, options: Options) -> LocalTrunk:
    return _trunk_of(fleet, "average", options)


def straight_head(fleet: Fleet, method: TrunkMethod, options: Options) -> LocalTrunk:
    return _trunk_of(fleet, "regmean", options)


def one_owner_s(modules: Sequence[str]) -> Callable[..., LocalTrunk]:
    """In each layer, these modules are those of the owner whose own lie nearest to all others'."""

    def trunk(fleet: Fleet, method: TrunkMethod, options: Options) -> LocalTrunk:
        made = _trunk_of(fleet, method, options)
        state = {name: tensor.clone() for name, tensor in load_file(made.path).items()}
        experts = [Checkpoint(domain.expert) for domain in fleet.domains]
        for layer in range(read_config(fleet.domains[0].expert).num_hidden_layers):
            names = [f"model.layers.{layer}.self_attn.{module}_proj.weight" for module in modules]
            flat = torch.stack([torch.cat([each.tensor(name).flatten() for name in names]) for each in experts])
            middle = experts[int(torch.cdist(flat, flat).sum(dim=0).argmin())]
            for name in names:
                own = middle.tensor(name)
                state[name][: len(own)] = own
        made.path.unlink()
        save_file(state, made.path)
        return made

    return trunk


def behind_the_mean(fleet: Fleet, slot: int, trunk: LocalTrunk, options: Options, **more: object) -> Member:
    """Statistics of features behind the mean of all experts' MLPs instead of the owner's."""
    checkpoints = [Checkpoint(domain.expert) for domain in fleet.domains]
    names = [name for name in checkpoints[0].specs if ".mlp." in name]
    mean = {name: average([each.tensor(name) for each in checkpoints], torch.float32) for name in names}
    domains = list(fleet.domains)
    own = domains[slot].expert
    folder = fit.write_fitted(domains[slot].expert, trunk.path, mean, fleet.work / "mean")
    domains[slot] = replace(domains[slot], expert=folder)
    return Member(
        DenseExpert(f"d{slot}", own),
        moerged.contribute(replace(fleet, domains=domains), slot, trunk, options).contribution,
    )


@torch.inference_mode()
def second_pass(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    """Routers solved again from what they read in the routed model."""
    recipe, own, _ = parse(FULL)
    [(_, model)] = recipe.build(fleet, own)
    assert isinstance(model, Routed)
    gates, domains = routers(model.model), len(fleet.domains)
    hidden = model.model.config.hidden_size
    grams = torch.zeros(len(gates), domains, hidden, hidden, dtype=torch.float64)
    sums = torch.zeros(len(gates), domains, hidden, dtype=torch.float64)
    tokens = torch.zeros(domains, dtype=torch.float64)
    seen: list[Tensor] = []
    handles = [gate.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for gate in gates]
    for number, domain in enumerate(fleet.domains):
        for batch in batches(all_counted(domain.statistics), 2048):
            model.model.base_model(input_ids=batch.input_ids, use_cache=False)
            for layer, x in enumerate(seen):
                real = x.reshape(-1, hidden)[batch.real.flatten()].double()
                grams[layer, number] += real.T @ real
                sums[layer, number] += real.sum(dim=0)
            tokens[number] += int(batch.real.sum())
            seen.clear()
    for handle in handles:
        handle.remove()
    weights = tokens.mean() / tokens
    for layer, gate in enumerate(gates):
        gram = torch.einsum("d,dhi->hi", weights, grams[layer])
        cross = (weights[:, None] * sums[layer]).T
        solution = torch.linalg.solve(gram + 1e-3 * gram.diagonal().mean() * torch.eye(hidden), cross)
        gate.get_parameter("weight").copy_(discriminants(solution, cross, (weights * tokens).tolist()).T)
    yield "second pass", model


class PerDomain(FromLogits):
    """Each text goes to its domain's own dense model."""

    reads_domain = True

    def __init__(self, models: Mapping[str, PreTrainedModel]) -> None:
        self._models = models
        self.active_parameters = active_parameters(next(iter(models.values())))

    def logits(self, rows: Rows) -> Tensor:
        return logits(self._models[rows.domain], rows)


def oracle_with_own(part: str, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    """The oracle, if each domain had its own expert's tensors with `part` in their names in the trunk."""
    made = moerged.trunk_of(fleet, "regmean", options)
    merged = Checkpoint(made.path)
    models = {}
    for slot, domain in enumerate(fleet.domains):
        own = Checkpoint(domain.expert)
        state = {name: merged.tensor(name) for name in merged.specs}
        for name in filter(lambda name: part in name, merged.specs):
            state[name] = own.tensor(name if name in own.specs else EMBEDDING)
        trunk = fleet.work / f"trunk-{slot}"
        save_file(state, trunk)
        models[domain.name] = load(fitted(fleet, slot, replace(made, path=trunk), {"tokens": 0}))
    yield part, PerDomain(models)


class FirstByDomain(FromLogits):
    """A version whose first layer sends each text to its own domain's expert; the others route."""

    reads_domain = True

    def __init__(self, routed: Routed, domains: Sequence[str]) -> None:
        self._model, self._domains = routed.model, list(domains)
        self.active_parameters = routed.active_parameters

    def logits(self, rows: Rows) -> Tensor:
        first = patch.object(routing, "routers", lambda model: routers(model)[:1])
        with first, routing.forced(self._model, self._domains.index(rows.domain)):
            return logits(self._model, rows)


def first_by_domain(spec: str, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    recipe, own, _ = parse(spec)
    [(_, model)] = recipe.build(fleet, own)
    assert isinstance(model, Routed)
    yield spec, FirstByDomain(model, [domain.name for domain in fleet.domains])


def recipe_of(name: str, build: Callable[[Fleet, Options], Iterator[tuple[str, Model]]]) -> Run:
    return Run(Recipe(name, "", build), {}, name)


def set_to(module: object, name: str, value: object) -> Patches:
    return lambda fleet: [patch.object(module, name, value)]


def trunk_by(build: Callable[..., LocalTrunk]) -> Patches:
    return set_to(moerge, "trunk_of", build)


def all_runs() -> list[Run]:
    runs = []
    for label, spec in (
        *((spec, spec) for spec in ("experts", "dume", "oracle", "regmean", "moerge", FULL)),
        ("moerge-oracle", "moerge-oracle:fit=1,context_head=1"),
        ("btm", "btm"),
        ("expert-routing", "expert-routing"),
        ("without the context head", "moerge:fit=1"),
        ("without fitted MLPs", "moerge:context_head=1"),
        ("the paper's routers", f"{FULL},discriminant=0"),
        ("k = 2", f"{FULL},k=2"),
    ):
        recipe, options, _ = parse(spec)
        runs.append(Run(recipe, options, label))
    return [
        *runs,
        changed("averaged trunk", trunk_by(averaged_trunk)),
        changed("head for the experts' own vectors", trunk_by(straight_head)),
        changed("head aligned five times", set_to(regmean, "ALIGNMENTS", 5)),
        changed("q and k of one owner", trunk_by(one_owner_s("qk"))),
        changed("q, k and v of one owner", trunk_by(one_owner_s("qkv"))),
        changed("first matrices as they were", set_to(fit, "_fit_first", nothing)),
        changed("residual, not the head's answers", set_to(fit, "_through_head", lambda own, *rest: own.states)),
        changed("features behind the mean MLPs", set_to(moerge, "contribute", behind_the_mean)),
        changed("context half as wide", set_to(context, "WIDTH", 12.0)),
        changed("context twice as wide", set_to(context, "WIDTH", 48.0)),
        changed("all tokens alike", set_to(context, "WIDTH", 1e5)),
        recipe_of("routers' second pass", second_pass),
        recipe_of("first layer by the domain", partial(first_by_domain, FULL)),
        recipe_of("first layer by the domain, no context head", partial(first_by_domain, "moerge:fit=1")),
        recipe_of("oracle with own head", partial(oracle_with_own, "lm_head")),
        recipe_of("oracle with own attention", partial(oracle_with_own, "self_attn")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trials", description=__doc__)
    parser.add_argument("--training-seeds", default="1,2,3")
    parser.add_argument("--json", type=Path)
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    runs = [run for run in all_runs() if not chosen.names or run.label in {"experts", *chosen.names}]
    preset, figures = PRESETS["demo"], dict[str, list[list[float]]]()
    for seed in map(int, chosen.training_seeds.split(",")):
        sources, base = preset.sources(cache_folder(), seed, progress())
        cut = replace(preset.cut, tokens=TOKENS)
        domains = {name: read_texts(name, each, cut) for name, each in sources.items()}
        table = measure(runs, domains, Settings(base, 1, STATISTICS_TOKENS), progress())
        for row in table.rows:
            if row.run.label != "experts":
                figures.setdefault(row.run.label, []).append([table.normalised(row, domain).mean for domain in domains])
    print(f"{'average of domains, by training seed':40} " + f"  mean  worst domain against {FULL}")
    best = figures.get(FULL, [])
    for label, seeds in figures.items():
        against = [a - b for one, two in zip(seeds, best, strict=False) for a, b in zip(one, two, strict=True)]
        cells = "".join(f"{fmean(each):7.1f}" for each in seeds)
        worst = f"{min(against):+7.1f}" if against else ""
        print(f"{label:40}{cells}{fmean(map(fmean, seeds)):7.1f}{worst}")
    if chosen.json:
        with atomic_file(chosen.json) as out:
            out.write(json.dumps(figures, indent=2).encode())


if __name__ == "__main__":
    main()
