"""The rule of a privacy budget: without noise nothing leaves but the expert's weights."""

from moerge.errors import MoergeError
from moerge.models.families.family import Family
from moerge.models.keeping import Keeping
from moerge_workers.settings import Settings


def require_covered(
    settings: Settings, family: Family, found: Keeping, *, was_fitted: bool = False, had_head: bool = False
) -> None:
    """Require settings by which no fitted MLPs and no head contribution leave under the seed's body.

    Args:
        was_fitted: whether the home has parts with fitted MLPs, which leave by default.
        had_head: whether it has parts with a head, to which a head contribution belongs.

    Raises:
        MoergeError: names what would leave, and the settings to change.
    """
    leaves = dict[str, str]()
    if settings.fit is None and (was_fitted or (family.is_fittable and not found.keeps_body)):
        leaves["fitted MLPs"] = "fit = false"
    if settings.policy.head_contributions and (had_head or not found.keeps_all):
        leaves["a head contribution"] = "head_contributions = false in [policy]"
    if leaves:
        earlier = ", and its home has parts with another head or other MLPs" if had_head else ""
        what = f"{' and '.join(leaves)} would leave without noise: the expert {found}{earlier}"
        todo = f"set {' and '.join(leaves.values())}; or train an expert that keeps the seed's body and head"
        raise MoergeError(what, where="[privacy]", todo=todo)
