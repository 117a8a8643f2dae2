"""Options of a version, and the two named recipes: the recommended one and the paper's."""

from typing import Annotated, Literal

from pydantic import Field

from moerge_proto.bodies import BodyMethod, HeadMethod
from moerge_proto.digests import Name
from moerge_proto.messages import Message, Whole
from moerge_proto.statistics_file import TextBefore

Routers = Literal["ridge", "discriminant"]
LambdaScale = Literal["absolute", "relative", "auto"]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
DomainWeights = dict[Name, Weight] | Literal["balanced"]


class SolveOptions(Message):
    """Options of the solve; the defaults are the paper's. Changing them needs no new contributions.

    Attributes:
        ridge_lambda: Tikhonov regulariser (DUME eq. 2).
        lambda_scale: the regulariser's unit: `absolute`; `relative`, the layer's mean diagonal; or `auto`, not in a
            merge: each layer gets the value with the least error on the tuning splits.
        domain_weights: weight of each domain's statistics, 1 if not named; `balanced`: as if all domains had equally
            many tokens.
        routers: `ridge`, the paper's; `discriminant`: Fisher's linear discriminants from the same sums.
        top_k: experts per token.
        temperature: divides the routers' scores; it matters only for a `top_k` above 1.
    """

    ridge_lambda: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    lambda_scale: LambdaScale = "absolute"
    domain_weights: DomainWeights = Field(default_factory=dict)
    routers: Routers = "ridge"
    top_k: Whole = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class VersionRecipe(Message):
    """The options of a version, from experts to routers.

    `before`: public text before that of router statistics.
    """

    body: BodyMethod
    head: HeadMethod
    fit: bool  # whether owners fit their MLPs to the body
    solve: SolveOptions
    before: TextBefore | None = None


PAPER = VersionRecipe(body="average", head="average", fit=False, solve=SolveOptions())
"""DUME as published (arXiv 2603.29765)."""
RECOMMENDED = VersionRecipe(
    body="regmean",
    head="regmean",
    fit=False,
    solve=SolveOptions(ridge_lambda=0.001, lambda_scale="relative", domain_weights="balanced", routers="discriminant"),
)
"""The default on one machine, and the service's solve. Measured in docs/quality.md."""
FEDERATED = RECOMMENDED.model_copy(update={"body": "seed", "fit": True})
"""The default of the service. Nobody can forge this body, and members change without a remerge; on one machine neither
matters."""
RARE_BELOW = 10
"""Body contributions withhold smaller token counts, because rare tokens can identify people. A default."""
RecipeName = Literal["recommended", "dume"]
VERSION_RECIPES: dict[RecipeName, VersionRecipe] = {"recommended": RECOMMENDED, "dume": PAPER}
_SOLVE = RECOMMENDED.solve


class RecommendedOptions(SolveOptions):
    """The schema of solve options that are completed with the recommended ones."""

    ridge_lambda: float = Field(default=_SOLVE.ridge_lambda, gt=0, allow_inf_nan=False)
    lambda_scale: LambdaScale = _SOLVE.lambda_scale
    domain_weights: DomainWeights = _SOLVE.domain_weights
    routers: Routers = _SOLVE.routers
