"""regmean with a head for MLPs that owners fit to the trunk.

Revision 1 always added a context head; revision 2 didn't bound an owner's share of a row.
"""

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
