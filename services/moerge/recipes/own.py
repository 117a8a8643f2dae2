"""moerge's own: a regmean trunk with a context head, MLPs that their owners fit to it, and discriminants as routers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from moerge.experts.fitting import fit_mlps, write_fitted
from moerge.models.batches import batches
from moerge.models.expert_folder import DenseExpert
from moerge.recipes.base import Fleet, Member, Model, Options, Parts, Recipe, whole
from moerge.recipes.models import Oracle
from moerge.recipes.published import (
    contribute,
    dense,
    first_tokens,
    published_recipe,
    random_routers,
    solve,
    solved_trunk,
    version,
)
from moerge_proto.statistics_file import StatisticsSettings

_OPTIONS: Options = {"k": 1, "lambda": 0.001, "tokens": 0, "fit": 1, "context": 1, "discriminant": 1}
"""As DUME's, but lambda is in units of the mean diagonal; `fit=0` leaves the MLPs as they are, `context=0` the
attention, and `discriminant=0` takes the paper's routers."""


def fitted(fleet: Fleet, slot: int, trunk: Path, options: Options) -> Path:
    """The folder of a slot's expert with MLPs that are fitted to the trunk."""
    domain = fleet.domains[slot]
    cut = list(batches(first_tokens(domain.statistics, options), StatisticsSettings().batch_tokens))
    mlps = fit_mlps(domain.expert, trunk, cut, fleet.device)
    return write_fitted(domain.expert, trunk, mlps, fleet.work / f"fitted-{slot}")


def _trunk(fleet: Fleet, options: Options) -> Path:
    turned, context = (bool(whole(options, name, 0, 1)) for name in ("fit", "context"))
    return solved_trunk(fleet, options, turned=turned, context=context)


def _expert(fleet: Fleet, slot: int, trunk: Path, options: Options) -> DenseExpert:
    own = dense(fleet, slot)
    if not whole(options, "fit", 0, 1):
        return own
    return DenseExpert(own.domain, fitted(fleet, slot, trunk, options), trained=own)


def _contribute(fleet: Fleet, slot: int, trunk: Path, options: Options) -> Member:
    expert, domains = _expert(fleet, slot, trunk, options), list(fleet.domains)
    domains[slot] = replace(domains[slot], expert=expert.folder)
    return Member(expert, contribute(replace(fleet, domains=domains), slot, trunk, options).contribution)


def _solve(members: Sequence[Member], trunk: Path, options: Options) -> list[Tensor]:
    fields = {"ridge_lambda": options["lambda"], "lambda_scale": "relative", "domain_weights": "balanced"}
    if whole(options, "discriminant", 0, 1):
        fields["routers"] = "discriminant"
    return solve(members, trunk, fields)


def _oracle(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    trunk = _trunk(fleet, options)
    experts = [_expert(fleet, slot, trunk, options) for slot in range(len(fleet.domains))]
    folder = version(experts, trunk, random_routers(fleet), options, fleet.work / "version")
    yield "moerge-oracle", Oracle.of(folder, fleet)


RECIPES = (
    published_recipe(
        "moerge",
        "regmean trunk with a context head, fitted MLPs, discriminants",
        Parts(_trunk, _contribute, _solve),
        _OPTIONS,
    ),
    Recipe(
        "moerge-oracle", "the same trunk and MLPs, DUME section 3.2", _oracle, {"tokens": 0, "fit": 1, "context": 1}
    ),
)
