"""The stage of the router contributions: sums of the statistics and tuning splits under a body."""

from contextlib import closing

from moerge.errors import MoergeError
from moerge.models.dense import has_head
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import router_manifest
from moerge.statistics.passes import RouterPass
from moerge_proto.contributions import Contribution
from moerge_proto.statistics_file import RouterManifest, Split
from moerge_workers.computing.pending import PendingStatistics
from moerge_workers.contributing.exchange import Exchange
from moerge_workers.contributing.seed import CheckedBody
from moerge_workers.contributing.statistics import Statistics
from moerge_workers.outgoing.ledger import Ledger, Sent

SPLITS: tuple[Split, ...] = "statistics", "tuning"


def run(
    exchange: Exchange, statistics: Statistics, expert: DenseExpert, registered: DenseExpert, checked: CheckedBody
) -> list[Contribution]:
    """Send new statistics under a body, and return the active contributions; `registered`: the expert's parts for it.

    Raises:
        MoergeError: there is too little to send.
    """
    settings, exponents, sent = statistics.documents.settings, checked.body.exponents, list[Contribution]()
    spent = statistics.finishing.spent(settings.home)
    mlps = registered if has_head(registered) else expert  # the same MLPs
    for split in SPLITS:
        finishing = statistics.finishing.of(split)
        limits = finishing.settings(settings.statistics)
        facts = registered.owner, registered.digest, registered.domain, checked.body, limits, split
        blank = router_manifest(*facts, finishing.keepers)
        path = statistics.ledger(blank)
        work = RouterPass(mlps, checked.weights, exponents, limits.precision, settings.device, limits.before)
        work = finishing.passing(work, path, blank)
        if split == "statistics" or settings.tuning_share or path.exists():
            with closing(Ledger(path, statistics.last_documents(blank), spent)) as ledger:
                if spent is not None and ledger.exact():
                    problem = "it lacks the cost of a contribution that was sent, so a budget can't bound what is known"
                    raise MoergeError(problem, where=str(spent), todo="restore its newest copy, or use another home")
                sent += _contribute(exchange, blank, statistics.pending(blank, work, ledger, finishing))
    return sent


def _contribute(exchange: Exchange, blank: RouterManifest, pending: PendingStatistics) -> list[Contribution]:
    """Compute and send one split: first unsent files of earlier runs, then new documents."""
    outbox, ledger = exchange.outbox, pending.ledger
    if (sent := _deliver(exchange, blank, ledger)) is None:
        return []
    if (summed := next((row for row in sent if row.cohort is not None), None)) is not None:
        outbox.say(f"{summed.digest[:12]} is in the sum of a cohort; changed documents wait for another body")
        return sent
    if (whole := pending.complete()) is not None:
        item = outbox.contribution(ledger.path(whole.file.name), whole.file.digest)
        if outbox.may_leave(item, exchange.replaced(blank.body)):
            whole.note()  # the ledger has only files that the owner approved
    return _deliver(exchange, blank, ledger) or []


def _deliver(exchange: Exchange, blank: RouterManifest, ledger: Ledger) -> list[Contribution] | None:
    """The contributions of the ledger's files; sends the inactive ones, which supersede replaced ones.

    None: the owner hasn't approved an earlier file, or this is a dry run.
    """
    place = blank.body, blank.domain, blank.split
    active = exchange.active("router")
    counted = {digest: row for digest, row in active.items() if (row.body, row.domain, row.split) == place}
    files = ledger.files()
    unsent = [file for file in files if file.digest not in counted and file.expert == blank.expert]
    if not all(ledger.path(file.name).is_file() for file in unsent):
        exchange.outbox.say("a sent contribution is inactive and its file is missing here; sending its documents again")
        ledger.forget()
        return []
    replaced = {file.digest for file in ledger.files(replaced=True)} - {file.digest for file in files}
    if not files and not exchange.outbox.settings.dry_run:
        _withdraw(exchange, sorted(replaced & counted.keys()), blank)
    supersedes = [digest for digest in counted if digest in replaced]
    for file in unsent:
        if (sent := _sent(exchange, blank, ledger, file, supersedes)) is None:
            return None
        counted[file.digest], supersedes = sent, []
    return [counted[file.digest] for file in files if file.digest in counted]


def _sent(
    exchange: Exchange, blank: RouterManifest, ledger: Ledger, file: Sent, supersedes: list[str]
) -> Contribution | None:
    """A file's contribution; None without the owner's approval. A refusal clears the ledger."""
    item = exchange.outbox.contribution(ledger.path(file.name), file.digest)
    if exchange.outbox.may_leave(item, exchange.replaced(blank.body)):
        return exchange.send(item, supersedes)
    if exchange.outbox.history.decision(item) == "refused":
        ledger.forget()
    return None


def _withdraw(exchange: Exchange, digests: list[str], blank: RouterManifest) -> None:
    for digest in digests:
        exchange.client.withdraw_contribution(digest)
        exchange.outbox.withdrawn(digest)
        exchange.outbox.say(f"withdrew {digest[:12]}: no {blank.split} document is left")
