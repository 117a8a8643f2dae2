"""regmean with a head for MLPs that owners fit to the trunk."""

from functools import partial

from moerge.trunk.methods.method import Method
from moerge.trunk.methods.regmean import plan

METHOD = Method(
    "moerge",
    "regmean for fitted MLPs (worker run --fit)",
    partial(plan, for_fitted_mlps=True),
    solved=True,
    for_fitted_mlps=True,
    revision=3,
)
