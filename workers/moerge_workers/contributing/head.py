"""The stage of the head contribution: the gram of the head's input in the expert itself."""

from contextlib import closing
from pathlib import Path

from moerge.files import atomic_file, file_sha256
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import head_manifest
from moerge.statistics.passes import HeadPass
from moerge_proto.contributions import Contribution
from moerge_proto.statistics_file import StatisticsFile, write
from moerge_workers.computing.finishing import Finishing
from moerge_workers.contributing.exchange import Exchange
from moerge_workers.contributing.statistics import Statistics
from moerge_workers.outgoing.ledger import Ledger


def run(
    exchange: Exchange, statistics: Statistics, expert: DenseExpert, registered: DenseExpert, body: str
) -> Contribution | None:
    """Send the expert's head contribution, over all documents, under the digest of its `registered` parts for a body.

    The sums are the expert's own, whatever parts of it are registered. So one ledger has the documents of all, and the
    active contribution's digest of the expert stays; a new contribution replaces it.

    None: the owner hasn't approved it, the body was replaced, its file is lost, or the policy forbids it.
    """
    settings, outbox = statistics.documents.settings, exchange.outbox
    if not settings.policy.head_contributions:
        outbox.say("the policy forbids head contributions; heads of versions can't be solved with this expert")
        return None
    blank = head_manifest(expert.owner, expert, expert.digest, settings.statistics, expert.domain)
    work = HeadPass(expert, blank.exponents, settings.statistics.precision, settings.device)
    digests = {row.digest for row in exchange.client.experts() if row.parts.expert == expert.digest}
    active = exchange.active("head")
    named = [row.expert for row in active.values() if row.expert in digests]
    with closing(Ledger(statistics.ledger(blank))) as ledger:
        whole = statistics.pending(blank, work, ledger, Finishing()).complete()
        path = ledger.path((ledger.files()[-1] if whole is None else whole.file).name)
        if not path.is_file():
            return None
        file = _as_of([*named, registered.digest][0], path)
        item = outbox.contribution(file, file_sha256(file))
        if item.digest not in active and not outbox.may_leave(item, exchange.replaced(body)):
            return None
        if whole is not None:
            whole.note()
    sent = active.get(item.digest)
    if sent is None:
        with StatisticsFile(file) as opened:
            of = opened.manifest.expert
        sent = exchange.send(item, [row.digest for row in active.values() if row.expert == of])
    outbox.say(f"contributed {sent.digest[:12]} for heads")
    return sent


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
