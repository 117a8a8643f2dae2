"""The stage of the head contribution: the gram of the head's input in the expert itself."""

from functools import partial
from pathlib import Path

from moerge.files import atomic_file
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import head_manifest
from moerge.statistics.passes import HeadPass
from moerge_proto.contributions import Contribution
from moerge_proto.statistics_file import StatisticsFile, write
from moerge_workers.contributing import own_sums
from moerge_workers.contributing.context import Context


def run(context: Context, registered: DenseExpert, body: str | None = None) -> Contribution | None:
    """Send the expert's head contribution, under the digest of the `registered` one: itself, or its parts for a body.

    The sums are the expert's own, whatever parts of it are registered. So one ledger has the documents of all, and the
    active contribution's digest of the expert stays.

    None: the owner hasn't approved it, the body was replaced, or the policy forbids it.
    """
    settings, expert = context.settings, context.expert
    if not settings.policy.head_contributions:
        context.events.say("the policy forbids head contributions; heads of versions can't be solved with this expert")
        return None
    blank = head_manifest(expert.owner, expert, expert.digest, settings.statistics, expert.domain)
    work = HeadPass(expert, blank.exponents, settings.statistics.precision, settings.device)
    digests = context.digests()
    active = [row.expert for row in context.active("head").values() if row.expert in digests]
    outgoing = partial(_as_of, [*active, registered.digest][0])
    outdated = (lambda: False) if body is None else context.replaced(body)
    outcome = own_sums.contribute(context, blank, work, outgoing, outdated)
    if outcome.sent is not None:
        context.events.say(f"contributed {outcome.sent.digest[:12]} for heads")
    return outcome.sent


def _as_of(digest: str, whole: Path) -> Path:
    """The file with the same sums that names the expert with that digest."""
    with StatisticsFile(whole) as file:
        manifest = file.manifest
        if manifest.expert == digest:
            return whole
        path = whole.with_name(f"{whole.stem}-{digest[:12]}.safetensors")
        with atomic_file(path) as out:
            write(out, manifest.model_copy(update={"expert": digest}), file.arrays())
    return path
