"""moerge's own recipe: the recommended options, and additions to them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from moerge.experts.fitting import fit
from moerge.merging.local import LocalTrunk
from moerge.models.batches import batches
from moerge.models.expert_folder import DenseExpert
from moerge_lab.recipes.base import Fleet, Member, Model, Options, Parts, Recipe, number, whole
from moerge_lab.recipes.models import Oracle
from moerge_lab.recipes.published import (
    COUNTS,
    contribute,
    dense,
    first_tokens,
    published_recipe,
    random_routers,
    solve,
    trunk_of,
    version,
)
from moerge_proto.options import PAPER, RECOMMENDED
from moerge_proto.statistics_file import StatisticsSettings

_TRUNK: Options = {"tokens": 0, **COUNTS, "fit": int(RECOMMENDED.fit)}
"""`fit=1`: MLPs are fitted to the trunk, by the method `moerge`."""
OPTIONS: Options = {
    "k": 1,
    "lambda": RECOMMENDED.solve.ridge_lambda,
    **_TRUNK,
    "discriminant": int(RECOMMENDED.solve.routers == "discriminant"),
}
"""lambda is in the recommended scale; `discriminant=0`: the paper's routers."""


def fitted(fleet: Fleet, slot: int, trunk: LocalTrunk, options: Options) -> Path:
    """The folder of a slot's fitted expert."""
    domain = fleet.domains[slot]
    cut = list(batches(first_tokens(domain.statistics, options), StatisticsSettings().batch_tokens))
    return fit(domain.expert, trunk.path, cut, fleet.work / f"fitted-{slot}", fleet.device)


def _trunk(fleet: Fleet, options: Options) -> LocalTrunk:
    return trunk_of(fleet, "moerge" if whole(options, "fit", 0, 1) else RECOMMENDED.method, options)


def _expert(fleet: Fleet, slot: int, trunk: LocalTrunk, options: Options) -> DenseExpert:
    own = dense(fleet, slot)
    if not whole(options, "fit", 0, 1):
        return own
    return DenseExpert(own.domain, fitted(fleet, slot, trunk, options), trained=own)


def _contribute(fleet: Fleet, slot: int, trunk: LocalTrunk, options: Options) -> Member:
    expert, domains = _expert(fleet, slot, trunk, options), list(fleet.domains)
    domains[slot] = replace(domains[slot], expert=expert.folder)
    return Member(expert, contribute(replace(fleet, domains=domains), slot, trunk, options).contribution)


def _solve(members: Sequence[Member], trunk: LocalTrunk, options: Options) -> list[Tensor]:
    routers = "discriminant" if whole(options, "discriminant", 0, 1) else PAPER.solve.routers
    fields = {**RECOMMENDED.solve.model_dump(), "ridge_lambda": number(options, "lambda"), "routers": routers}
    return solve(members, trunk, fields)


def _oracle(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    trunk = _trunk(fleet, options)
    experts = [_expert(fleet, slot, trunk, options) for slot in range(len(fleet.domains))]
    folder = version(experts, trunk, random_routers(fleet), options, fleet.work / "version")
    yield "moerge-oracle", Oracle.of(folder, fleet)


PARTS = Parts(_trunk, _contribute, _solve)
RECIPES = (
    published_recipe("moerge", "regmean trunk, discriminants as routers", PARTS, OPTIONS),
    Recipe("moerge-oracle", "the same trunk and MLPs, DUME section 3.2", _oracle, _TRUNK),
)
