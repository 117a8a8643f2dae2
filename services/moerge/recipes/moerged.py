"""MoErged models: every expert's MLPs behind one trunk, with routers, published and loaded as moerge does it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from moerge.architectures.config import read_config
from moerge.architectures.families import family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.publish.folder import write_trunk, write_version
from moerge.recipes.base import Domain, Fleet, Model, Options, Recipe, whole
from moerge.recipes.dense import TASK_VECTORS, checked, method_of
from moerge.recipes.models import Oracle, Routed
from moerge.routers.layers import solve_layers
from moerge.statistics.bounds import feature_gains
from moerge.statistics.local import router_contribution, trunk_contribution
from moerge.trunk.regmean import ModuleGrams, regmean
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.versions import SolveOptions

Texts = Callable[[Domain], Sequence[list[int]]]
"""What of a domain's text statistics come from."""
RIDGE: Options = {"k": 1, "lambda": 0.01, "tokens": 0}
"""Experts per token, the ridge regulariser, and how many tokens of each document count; 0: all (DUME section 3.1)."""


def statistics(domain: Domain) -> Sequence[list[int]]:
    return domain.statistics


def other(domain: Domain) -> Sequence[list[int]]:
    return domain.other


def first_tokens(documents: Sequence[list[int]], options: Options) -> list[list[int]]:
    """As many first tokens of each document as the option `tokens` says; 0: all."""
    most = whole(options, "tokens", 0) if "tokens" in options else 0
    return [ids[: most or None] for ids in documents]


def trunk_of(fleet: Fleet, options: Options, method: str) -> Path:
    """The trunk's file, merged by a method's name: average, weighted, ties, dare or regmean."""
    experts, path = [domain.expert for domain in fleet.domains], fleet.work / "trunk.safetensors"
    if method != "regmean":
        return write_trunk(experts, path, method_of(method, fleet, options))
    config = read_config(experts[0])
    with ExitStack() as stack:
        owners = []
        for slot, domain in enumerate(fleet.domains):
            sent = fleet.work / f"trunk-contribution-{slot}"
            rows = first_tokens(domain.statistics, options)
            trunk_contribution(_name(slot), domain.expert, rows, sent, device=fleet.device)
            file = stack.enter_context(StatisticsFile(sent))
            owners.append(ModuleGrams(Checkpoint(domain.expert), file, family_of(config), config))
        return write_trunk(experts, path, regmean(owners), own_head=True)


def random_routers(fleet: Fleet) -> list[Tensor]:
    """Standard normal, [D, H] per layer (DUME section 3.2)."""
    config, generator = read_config(fleet.domains[0].expert), torch.Generator().manual_seed(fleet.seed)
    shape = (len(fleet.domains), config.hidden_size)
    return [torch.randn(shape, generator=generator) for _ in range(config.num_hidden_layers)]


def routers_of(
    fleet: Fleet, trunk: Path, options: Options, solve: Mapping[str, object], texts: Texts = statistics
) -> list[Tensor]:
    """The closed form from the domains' texts, [D, H] float64 per layer; `solve` are fields of SolveOptions."""
    config = read_config(fleet.domains[0].expert)
    gains = feature_gains(Checkpoint(trunk), family_of(config), config)
    chosen = checked(SolveOptions, solve)
    with ExitStack() as stack:
        files = []
        for slot, domain in enumerate(fleet.domains):
            sent = fleet.work / f"contribution-{slot}"
            rows = first_tokens(texts(domain), options)
            router_contribution(_name(slot), domain.expert, trunk, rows, sent, device=fleet.device)
            files.append(stack.enter_context(StatisticsFile(sent)))
        return solve_layers(files, [_name(slot) for slot in range(len(files))], gains, chosen)[0]


def version(fleet: Fleet, trunk: Path, routers: Sequence[Tensor], options: Options) -> Path:
    """The published version's folder; k experts see each token, by default one.

    Raises:
        MoergeError: there are fewer experts than that.
    """
    experts = [domain.expert for domain in fleet.domains]
    top_k = whole(options, "k", 1, len(experts)) if "k" in options else 1
    return write_version(experts, trunk, lambda: routers, fleet.work / "version", top_k)


def _name(slot: int) -> str:
    """A domain's name in files that are seen here alone; users may have chosen any."""
    return f"d{slot}"


def _random(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    folder = version(fleet, trunk_of(fleet, options, "average"), random_routers(fleet), options)
    yield "random", Routed.of(folder, fleet.device)


def _oracle(row: str, method: str, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    folder = version(fleet, trunk_of(fleet, options, method), random_routers(fleet), options)
    yield row, Oracle.of(folder, fleet)


def _ridge(row: str, method: str, texts: Texts, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    trunk = trunk_of(fleet, options, method)
    folder = version(
        fleet, trunk, routers_of(fleet, trunk, options, {"ridge_lambda": options["lambda"]}, texts), options
    )
    yield row, Routed.of(folder, fleet.device)


RECIPES = (
    Recipe("random", "DUME section 3.2", _random, {"k": 1}, uses_text=False, drawn=True),
    Recipe("oracle", "DUME section 3.2", partial(_oracle, "oracle", "average"), uses_text=False),
    Recipe("dume", "DUME section 2.3", partial(_ridge, "dume", "average", statistics), RIDGE),
    Recipe("dume-ood", "DUME section 3.3", partial(_ridge, "dume-ood", "average", other), RIDGE, needs_other=True),
    Recipe(
        "dume-ties",
        "DUME under MergeME's trunk, MergeME 3.1",
        partial(_ridge, "dume-ties", "ties", statistics),
        {**RIDGE, **TASK_VECTORS},
        needs_base=True,
    ),
    Recipe(
        "dume-dare",
        "DUME under MergeME's trunk, MergeME 3.1",
        partial(_ridge, "dume-dare", "dare", statistics),
        {**RIDGE, **TASK_VECTORS},
        drawn=True,
        needs_base=True,
    ),
    Recipe("regmean", "regmean trunk, DUME's routers", partial(_ridge, "regmean", "regmean", statistics), RIDGE),
    Recipe("regmean-oracle", "regmean trunk, DUME section 3.2", partial(_oracle, "regmean-oracle", "regmean")),
)
