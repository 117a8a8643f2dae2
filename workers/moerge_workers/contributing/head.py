"""The stage of the head contribution: the gram of the head's input in the expert itself."""

from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import head_manifest
from moerge.statistics.passes import HeadPass
from moerge_proto.contributions import Contribution
from moerge_workers.contributing import own_sums
from moerge_workers.contributing.context import Context


def run(context: Context, registered: DenseExpert) -> Contribution | None:
    """Send the head contribution of the expert, under the digest of the `registered` one: itself, or its parts.

    None: the owner hasn't approved it, or the policy forbids it.
    """
    settings, expert = context.settings, context.expert
    if not settings.policy.head_contributions:
        context.events.say("the policy forbids head contributions; heads of versions can't be solved with this expert")
        return None
    blank = head_manifest(expert.owner, expert, registered.digest, settings.statistics)
    work = HeadPass(expert, blank.exponents, settings.statistics.precision, settings.device)
    sent = own_sums.contribute(context, blank, work, lambda whole: whole).sent
    if sent is not None:
        context.events.say(f"contributed {sent.digest[:12]} for heads")
    return sent
