"""The stage of the router contributions: sums of the statistics and tuning splits under a body."""

from contextlib import closing

from moerge.errors import MoergeError
from moerge.models.dense import has_head
from moerge.models.dense_files import DenseBody
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import router_manifest
from moerge.statistics.passes import RouterPass
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution
from moerge_proto.statistics_file import RouterManifest, Split
from moerge_workers.computing.finishing import Finishing
from moerge_workers.contributing.context import Context
from moerge_workers.outgoing.ledger import Ledger, Sent

SPLITS: tuple[Split, ...] = "statistics", "tuning"


def run(context: Context, body: Body, weights: DenseBody, expert: DenseExpert) -> list[Contribution]:
    """Send new statistics under a body, and return the active contributions.

    Args:
        weights: the checked body's.
        expert: its registered parts for this body.

    Raises:
        MoergeError: there is too little to send.
    """
    settings, sent, spent = context.settings, list[Contribution](), context.finishing.spent(context.settings.home)
    mlps = expert if has_head(expert) else context.expert  # the same MLPs
    for split in SPLITS:
        finishing = context.finishing.of(split)
        statistics = finishing.settings(settings.statistics)
        facts = expert.owner, expert.digest, expert.domain, body, statistics, split
        blank = router_manifest(*facts, finishing.keepers)
        path = context.ledger(blank)
        work = RouterPass(mlps, weights, body.exponents, statistics.precision, settings.device, statistics.before)
        work = finishing.passing(work, path, blank)
        if split == "statistics" or settings.tuning_share or path.exists():
            with closing(Ledger(path, context.last_documents(blank), spent)) as ledger:
                if spent is not None and ledger.exact():
                    problem = "it lacks the cost of a contribution that was sent, so a budget can't bound what is known"
                    raise MoergeError(problem, where=str(spent), todo="restore its newest copy, or use another home")
                sent += _contribute(context, blank, work, ledger, finishing)
    return sent


def _contribute(
    context: Context, blank: RouterManifest, work: RouterPass, ledger: Ledger, finishing: Finishing
) -> list[Contribution]:
    """Compute and send one split: first unsent files of earlier runs, then new documents."""
    if (sent := _deliver(context, blank, ledger)) is None:
        return []
    if (summed := next((row for row in sent if row.cohort is not None), None)) is not None:
        context.events.say(f"{summed.digest[:12]} is in the sum of a cohort; changed documents wait for another body")
        return sent
    if (whole := context.pending(blank, work, ledger, finishing).complete()) is not None:
        item = context.outbox.contribution(ledger.path(whole.file.name), whole.file.digest)
        if context.outbox.may_leave(item, context.replaced(blank.body)):
            whole.note()  # the ledger has only files that the owner approved
    return _deliver(context, blank, ledger) or []


def _deliver(context: Context, blank: RouterManifest, ledger: Ledger) -> list[Contribution] | None:
    """The contributions of the ledger's files; sends the inactive ones, which supersede replaced ones.

    None: the owner hasn't approved an earlier file, or this is a dry run.
    """
    place = blank.body, blank.domain, blank.split
    active = context.active("router")
    counted = {digest: row for digest, row in active.items() if (row.body, row.domain, row.split) == place}
    files = ledger.files()
    unsent = [file for file in files if file.digest not in counted and file.expert == blank.expert]
    if not all(ledger.path(file.name).is_file() for file in unsent):
        context.events.say("a sent contribution is inactive and its file is missing here; sending its documents again")
        ledger.forget()
        return []
    replaced = {file.digest for file in ledger.files(replaced=True)} - {file.digest for file in files}
    if not files and not context.settings.dry_run:
        _withdraw(context, sorted(replaced & counted.keys()), blank)
    supersedes = [digest for digest in counted if digest in replaced]
    for file in unsent:
        if (sent := _sent(context, blank, ledger, file, supersedes)) is None:
            return None
        counted[file.digest], supersedes = sent, []
    return [counted[file.digest] for file in files if file.digest in counted]


def _sent(
    context: Context, blank: RouterManifest, ledger: Ledger, file: Sent, supersedes: list[str]
) -> Contribution | None:
    """A file's contribution; None without the owner's approval. A refusal clears the ledger."""
    item = context.outbox.contribution(ledger.path(file.name), file.digest)
    if context.outbox.may_leave(item, context.replaced(blank.body)):
        return context.send(item, supersedes)
    if context.outbox.history.decision(item) == "refused":
        ledger.forget()
    return None


def _withdraw(context: Context, digests: list[str], blank: RouterManifest) -> None:
    for digest in digests:
        context.client.withdraw_contribution(digest)
        context.outbox.withdrawn(digest)
        context.events.say(f"withdrew {digest[:12]}: no {blank.split} document is left")
