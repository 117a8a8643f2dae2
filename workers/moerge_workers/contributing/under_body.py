"""The stages under one body: its check, the expert's parts, head and router contributions."""

from pathlib import Path

from moerge.models.dense import has_head
from moerge.models.expert_folder import DenseExpert
from moerge.models.keeping import Keeping
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution
from moerge_workers.contributing import head, parts, router
from moerge_workers.contributing.body_check import checked_body
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.covered import require_covered
from moerge_workers.contributing.seed import OwnBody
from moerge_workers.policy import body_kind


def run(context: Context, body: Body, own_grams: Path | None) -> list[Contribution]:
    """Check a body, send what it lacks, and return the active router contributions under it.

    Under a seed's body no text is read before the check, and the head contribution is the parts'; there is none if the
    expert keeps the seed's head. `own_grams` as in `checked_body`, which has the errors of the check.

    Raises:
        KeptError: under a seed's body, the parts may not leave now.
        MoergeError: there is too little to send; or with a privacy budget, more would leave than it covers.
    """
    context.outbox.outdate(lambda item: item.body not in ("", body.digest))
    weights = checked_body(context, body, own_grams, context.replaced(body.digest))
    if weights is None:
        return []
    is_seed = body_kind(body.method) == "seed"
    found = None
    if context.settings.privacy is not None and isinstance(weights, OwnBody):
        found = parts.compared(context, body, weights)
        _require_covered(context, body, found)
    if is_seed:
        context.look_at_data()
    if (expert := parts.run(context, body, weights, found)) is None:
        return []
    if (
        is_seed
        and has_head(expert)
        and head.run(context, expert, body.digest) is None
        and context.is_replaced(body.digest)
    ):
        return []
    return router.run(context, body, weights, expert)


def _require_covered(context: Context, body: Body, found: Keeping) -> None:
    own = context.expert
    made = [DenseExpert(own.domain, path) for path in parts.folders(context, body.digest)]
    require_covered(
        context.settings,
        own.family,
        found,
        was_fitted=any(parts.is_fitted(context, body.digest, item.digest) for item in made),
        had_head=any(map(has_head, made)),
    )
