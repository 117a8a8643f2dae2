"""moerge's own: a regmean trunk, MLPs that their owners fit to it, and linear discriminants as routers."""

from collections.abc import Iterator
from dataclasses import replace

from moerge.recipes.base import Domain, Fleet, Model, Options, Recipe, whole
from moerge.recipes.models import Oracle, Routed
from moerge.recipes.moerged import first_tokens, random_routers, routers_of, trunk_of, version
from moerge.statistics.batch import batches
from moerge.trunk.fit import first_means, fit_mlps, write_fitted
from moerge_proto.statistics_file import StatisticsSettings

_OPTIONS: Options = {"k": 1, "lambda": 0.001, "tokens": 0, "fit": 1, "shared": 1, "discriminant": 1}
"""As DUME's, but lambda is in units of the mean diagonal; `fit=0` leaves the MLPs as they are, `shared=0` doesn't
draw those of the first layer to their mean, and `discriminant=0` takes the paper's routers."""


def fitted(fleet: Fleet, options: Options) -> Fleet:
    """The fleet with experts whose MLPs are fitted to the trunk in its folder."""
    means = first_means([domain.expert for domain in fleet.domains]) if whole(options, "shared", 0, 1) else None
    trunk, domains = fleet.work / "trunk.safetensors", list[Domain]()
    for slot, domain in enumerate(fleet.domains):
        rows = first_tokens(domain.statistics, options)
        cut = list(batches(rows, StatisticsSettings().batch_tokens))
        mlps = fit_mlps(domain.expert, trunk, cut, means, fleet.device)
        domains.append(replace(domain, expert=write_fitted(domain.expert, trunk, mlps, fleet.work / f"fitted-{slot}")))
    return replace(fleet, domains=domains)


def _build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    trunk = trunk_of(fleet, options, "regmean")
    if whole(options, "fit", 0, 1):
        fleet = fitted(fleet, options)
    solve = {"ridge_lambda": options["lambda"], "lambda_scale": "relative", "domain_weights": "balanced"}
    if whole(options, "discriminant", 0, 1):
        solve["routers"] = "discriminant"
    routers = routers_of(fleet, trunk, options, solve)
    yield "moerge", Routed.of(version(fleet, trunk, routers, options), fleet.device)


def _oracle(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    trunk = trunk_of(fleet, options, "regmean")
    fleet = fitted(fleet, options)
    yield "moerge-oracle", Oracle.of(version(fleet, trunk, random_routers(fleet), options), fleet)


RECIPES = (
    Recipe("moerge", "regmean trunk, fitted MLPs, discriminants", _build, _OPTIONS),
    Recipe("moerge-oracle", "the same trunk and MLPs, DUME section 3.2", _oracle, {"tokens": 0, "shared": 1}),
)
