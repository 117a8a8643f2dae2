"""MoErged models: a trunk with every expert's MLPs and routers, published and loaded by moerge."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from moerge.merging.local import LocalTrunk, given, local_trunk, local_version
from moerge.models.config import read_config
from moerge.models.dense import domain_model, place
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from moerge.models.tokens import Tokens, all_counted
from moerge.scoring.perplexity import Losses, Rows, logits, losses_by
from moerge.statistics.contribution import Computing, router_contribution, trunk_contribution
from moerge.trunk.methods.registry import METHODS
from moerge.versions.folder import write_version
from moerge.versions.plan import plan_version, solve_routers
from moerge_lab.recipes.base import (
    Chosen,
    Domain,
    Fleet,
    Member,
    Model,
    Numbers,
    Options,
    Parts,
    Recipe,
    nothing_chosen,
    number,
    whole,
)
from moerge_lab.recipes.dense import TASK_VECTORS, base_of, checked, domain_name, trunk_options
from moerge_lab.recipes.models import Oracle, Routed
from moerge_lab.recipes.tuning import choose_scale
from moerge_proto.options import RARE_BELOW, SolveOptions
from moerge_proto.trunks import TrunkMethod, TrunkOptions

Texts = Callable[[Domain], Sequence[list[int]]]
"""The text of a domain for statistics."""
RIDGE: Options = {"k": 1, "lambda": 0.01, "tokens": 0}
"""Experts per token, the ridge regulariser, and counted tokens per document; 0: all (DUME section 3.1)."""
COUNTS: Options = {"rare_below": RARE_BELOW}
"""Smaller token counts are withheld, as in workers; 0: none."""


def statistics(domain: Domain) -> Sequence[list[int]]:
    return domain.statistics


def other(domain: Domain) -> Sequence[list[int]]:
    return domain.other


def first_tokens(documents: Sequence[list[int]], options: Options) -> list[Tokens]:
    """The first tokens of each document, as many as the option `tokens`; 0: all."""
    most = whole(options, "tokens", 0) if "tokens" in options else 0
    return [tokens.first(most or None) for tokens in all_counted(documents)]


def trunk_of(fleet: Fleet, method: TrunkMethod, options: Options) -> LocalTrunk:
    """The trunk, merged by a method; a solved one uses trunk contributions from the domains' statistics.

    A table solves equal trunks once.
    """
    shared, own = fleet.shared, trunk_options(method, fleet, options)
    if shared.folder is None or not METHODS[method].solved:
        return _merged(fleet, method, options, own, fleet.work)
    experts, text = (each.expert for each in fleet.domains), (options.get("tokens", 0), options["rare_below"])
    key = (method, own.model_dump_json(), fleet.base, fleet.seed, *experts, *text)
    if key not in shared.trunks:
        folder = shared.folder / f"trunk-{len(shared.trunks)}"
        folder.mkdir()
        shared.trunks[key] = _merged(fleet, method, options, own, folder)
    return shared.trunks[key]


def _merged(fleet: Fleet, method: TrunkMethod, options: Options, own: TrunkOptions, folder: Path) -> LocalTrunk:
    slots = range(len(fleet.domains))
    return local_trunk(
        [dense(fleet, slot) for slot in slots],
        folder,
        method,
        [_trunk_contribution(fleet, slot, options) for slot in slots if METHODS[method].solved],
        own,
        base=None if (base := base_of(method, fleet)) is None else DenseExpert("base", base),
    )


def _trunk_contribution(fleet: Fleet, slot: int, options: Options) -> Path:
    rows, path = first_tokens(fleet.domains[slot].statistics, options), fleet.work / f"trunk-contribution-{slot}"
    rare = whole(options, "rare_below", 0)
    trunk_contribution(dense(fleet, slot), rows, path, computing=Computing(fleet.device), rare_below=rare)
    return path


def random_routers(fleet: Fleet) -> list[Tensor]:
    """Standard normal routers, [D, H] per layer (DUME section 3.2)."""
    config, generator = read_config(fleet.domains[0].expert), torch.Generator().manual_seed(fleet.seed)
    shape = (len(fleet.domains), config.hidden_size)
    return [torch.randn(shape, generator=generator) for _ in range(config.num_hidden_layers)]


def contribute(fleet: Fleet, slot: int, trunk: LocalTrunk, options: Options, texts: Texts = statistics) -> Member:
    """The unchanged expert, and its router contribution from the domain's texts."""
    domain, sent = fleet.domains[slot], fleet.work / f"contribution-{slot}"
    rows = first_tokens(texts(domain), options)
    own = dense(fleet, slot)
    router_contribution(own, trunk, rows, sent, computing=Computing(fleet.device))
    return Member(own, sent)


def solve(members: Sequence[Member], trunk: LocalTrunk, fields: Mapping[str, object]) -> list[Tensor]:
    """The closed form from router contributions, [D, H] float64 per layer; `fields`: of SolveOptions."""
    chosen = checked(SolveOptions, fields)
    contributions = [each.contribution for each in members]
    domains = [each.expert.domain for each in members]
    return list(solve_routers(Checkpoint(trunk.path), members[0].expert.folder, contributions, domains, chosen)[0])


def dense(fleet: Fleet, slot: int) -> DenseExpert:
    """A domain's expert. Files have its slot's name, because users may choose any."""
    return DenseExpert(domain_name(slot), fleet.domains[slot].expert)


def version(
    experts: Sequence[DenseExpert], trunk: LocalTrunk, routers: Sequence[Tensor], options: Options, folder: Path
) -> Path:
    """Publishes a version with k experts per token, by default one.

    Raises:
        MoergeError: there are fewer than k experts.
    """
    top_k = whole(options, "k", 1, len(experts)) if "k" in options else 1
    lineage, inputs = local_version(experts, trunk, [], SolveOptions(top_k=top_k))
    return write_version(plan_version(lineage, inputs, given(routers)), folder)


def publish(parts: Parts, fleet: Fleet, options: Options) -> Path:
    """The folder of a version made in these steps."""
    trunk = parts.trunk(fleet, options)
    members = [parts.contribute(fleet, slot, trunk, options) for slot in range(len(fleet.domains))]
    routers = parts.solve(members, trunk, options)
    return version([each.expert for each in members], trunk, routers, options, fleet.work / "version")


def published_recipe(
    name: str,
    source: str,
    parts: Parts,
    options: Options,
    *,
    drawn: bool = False,
    needs_base: bool = False,
    needs_other: bool = False,
) -> Recipe:
    """The recipe of a version with these steps."""

    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        chosen = parts.chosen(fleet, options)
        model = Routed.of(publish(parts, fleet, {**options, **chosen}), fleet.device, fleet.dtype)
        model.chosen = chosen
        yield name, model

    return Recipe(
        name, source, build, options, drawn=drawn, needs_base=needs_base, needs_other=needs_other, parts=parts
    )


def _random(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    trunk, experts = trunk_of(fleet, "average", options), [dense(fleet, slot) for slot in range(len(fleet.domains))]
    folder = version(experts, trunk, random_routers(fleet), options, fleet.work / "version")
    yield "random", Routed.of(folder, fleet.device, fleet.dtype)


def _oracle(row: str, method: TrunkMethod, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    trunk, experts = trunk_of(fleet, method, options), [dense(fleet, slot) for slot in range(len(fleet.domains))]
    folder = version(experts, trunk, random_routers(fleet), options, fleet.work / "version")
    yield row, Oracle.of(folder, fleet)


def scale_of(method: TrunkMethod, fleet: Fleet, options: Options) -> Numbers:
    """The scale of the trunk's task vectors with the least loss of the domains' own MLPs, without routers."""
    experts = {domain.name: domain.expert for domain in fleet.domains}

    def build(scale: float) -> Losses:
        trunk = trunk_of(fleet, method, {**options, "scale": scale})

        def own(rows: Rows) -> Tensor:
            model, _ = domain_model(experts[rows.domain], trunk.path)
            place(model, fleet.device)
            return losses_by(partial(logits, model))(rows)

        return own

    return choose_scale(fleet, options, build)


def ridge(method: TrunkMethod, texts: Texts = statistics, chosen: Chosen = nothing_chosen) -> Parts:
    """DUME's routers under the trunk of a method, from the domains' texts."""
    return Parts(
        lambda fleet, options: trunk_of(fleet, method, options),
        lambda fleet, slot, trunk, options: contribute(fleet, slot, trunk, options, texts),
        lambda members, trunk, options: solve(members, trunk, {"ridge_lambda": number(options, "lambda")}),
        chosen,
    )


RECIPES = (
    Recipe("random", "DUME section 3.2", _random, {"k": 1}, uses_text=False, drawn=True),
    Recipe("oracle", "DUME section 3.2", partial(_oracle, "oracle", "average"), uses_text=False),
    published_recipe("dume", "DUME section 2.3", ridge("average"), RIDGE),
    published_recipe("dume-ood", "DUME section 3.3", ridge("average", other), RIDGE, needs_other=True),
    published_recipe(
        "dume-ties",
        "DUME under MergeME's trunk, MergeME 3.1",
        ridge("ties", chosen=partial(scale_of, "ties")),
        {**RIDGE, **TASK_VECTORS},
        needs_base=True,
    ),
    published_recipe(
        "dume-dare",
        "DUME under MergeME's trunk, MergeME 3.1",
        ridge("dare", chosen=partial(scale_of, "dare")),
        {**RIDGE, **TASK_VECTORS},
        drawn=True,
        needs_base=True,
    ),
    published_recipe("regmean", "regmean trunk, DUME's routers", ridge("regmean"), {**RIDGE, **COUNTS}),
    Recipe("regmean-oracle", "regmean trunk, DUME section 3.2", partial(_oracle, "regmean-oracle", "regmean"), COUNTS),
)
