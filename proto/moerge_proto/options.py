"""Options of a version, and the two recipes that have a name: the recommended one and the paper's."""

from typing import Annotated, Literal

from pydantic import Field

from moerge_proto.digests import Name
from moerge_proto.messages import Message, Whole
from moerge_proto.trunks import TrunkMethod

Routers = Literal["ridge", "discriminant"]
LambdaScale = Literal["absolute", "relative", "auto"]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
DomainWeights = dict[Name, Weight] | Literal["balanced"]


class SolveOptions(Message):
    """How routers are solved; all of it can be chosen anew without any owner's help.

    `ridge_lambda`: Tikhonov regulariser (DUME eq. 2; 0.01 in the paper), as it stands (`absolute`) or in units of the
    layer's mean diagonal (`relative`); with `auto` each layer gets the one that errs least on the tuning splits.
    `domain_weights`: domain -> weight of its statistics, 1 for those not named; `balanced` weighs all domains as if
    they had contributed equally many tokens. `top_k`: experts per token. `temperature` divides the router's scores;
    it matters for top_k > 1 only. The defaults are the paper's.
    """

    ridge_lambda: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    lambda_scale: LambdaScale = "absolute"
    domain_weights: DomainWeights = Field(default_factory=dict)
    routers: Routers = "ridge"
    top_k: Whole = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class VersionRecipe(Message):
    """The choices by which a version is made from experts.

    `method` is the trunk's, `solve` the routers'. `fit`: owners fit their MLPs to the trunk.
    """

    method: TrunkMethod
    fit: bool
    solve: SolveOptions


PAPER = VersionRecipe(method="average", fit=False, solve=SolveOptions())
"""DUME as published (arXiv 2603.29765)."""
RECOMMENDED = VersionRecipe(
    method="regmean",
    fit=False,
    solve=SolveOptions(ridge_lambda=0.001, lambda_scale="relative", domain_weights="balanced", routers="discriminant"),
)
"""The default of REST, the commands, the dashboard, the demo and the recipe `moerge`. Measured in docs/quality.md."""
RARE_BELOW = 10
"""Trunk contributions withhold counts of tokens that occur fewer times, because rare tokens can identify people. The
default of workers, `moerge merge` and recipes."""
RecipeName = Literal["moerge", "dume"]
VERSION_RECIPES: dict[RecipeName, VersionRecipe] = {"moerge": RECOMMENDED, "dume": PAPER}
"""Of the library's recipes, those that owners and an operator can follow."""
_SOLVE = RECOMMENDED.solve


class RecommendedOptions(SolveOptions):
    """The schema of solve options that are completed with the recommended ones."""

    ridge_lambda: float = Field(default=_SOLVE.ridge_lambda, gt=0, allow_inf_nan=False)
    lambda_scale: LambdaScale = _SOLVE.lambda_scale
    domain_weights: DomainWeights = _SOLVE.domain_weights
    routers: Routers = _SOLVE.routers
