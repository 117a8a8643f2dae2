"""The recommended recipe: its options, and additions to them."""

from dataclasses import replace
from functools import partial

from moerge.bodies.head_kinds import HEADS
from moerge.bodies.methods.registry import METHODS
from moerge.merging.recipe import Recipe as Choices
from moerge.routers.registry import ROUTERS
from moerge_lab.recipes.base import SEED, Options, Parts, Recipe, number, whole, word
from moerge_lab.recipes.dense import checked
from moerge_lab.recipes.published import COUNTS, oracle, published_recipe
from moerge_proto.recipes import RECOMMENDED, VersionRecipe

_BODY: Options = {
    "tokens": 0,
    **COUNTS,
    "body": RECOMMENDED.body,
    "head": RECOMMENDED.head,
    "fit": int(RECOMMENDED.fit),
}
"""Methods of body and head; `fit=1`: MLPs are fitted to the body."""
_WORDS = {"body": tuple(METHODS), "head": tuple(HEADS)}
_SOLVE: Options = {
    "k": 1,
    "lambda": RECOMMENDED.solve.ridge_lambda,
    "routers": RECOMMENDED.solve.routers,
    "before": int(RECOMMENDED.before is not None),
    SEED: 0,
    "epsilon": 0,
}
OPTIONS: Options = {**_SOLVE, **_BODY}
"""lambda is in the recommended scale; `routers=ridge`: the paper's; `before=1`: router statistics behind public text;
`seed=1`: the seed is one more expert, with statistics of public text; `epsilon`: router statistics have noise, with
delta 1e-6, 0: none."""


def _recipe(options: Options) -> VersionRecipe:
    given: dict[str, object] = {name: word(options, name) for name in _WORDS}
    given["fit"] = bool(whole(options, "fit", 0, 1))
    if "lambda" in options:
        before = bool(whole(options, "before", 0, 1))
        given |= {"lambda": number(options, "lambda"), "routers": word(options, "routers"), "before": before}
    return checked(Choices, given).followed


PARTS = Parts(_recipe, fits_newcomers=True)
RECIPES = (
    replace(
        published_recipe("recommended", "regmean body and head, discriminants as routers", PARTS, OPTIONS),
        words={**_WORDS, "routers": tuple(ROUTERS)},
    ),
    Recipe(
        "recommended-oracle",
        "the same body and MLPs, DUME section 3.2",
        partial(oracle, "recommended-oracle", PARTS),
        _BODY,
        _WORDS,
    ),
)
