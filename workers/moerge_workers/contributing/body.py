"""The stage of the body contribution: grams and token counts of the expert itself."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from moerge.files import file_sha256
from moerge.statistics.contribution import body_manifest, withhold_rare
from moerge.statistics.passes import BodyPass
from moerge_proto.contributions import Contribution
from moerge_workers.contributing.context import Context
from moerge_workers.leaving.ledger import Ledger


@dataclass(frozen=True)
class Outcome:
    """The active contribution, None without the owner's approval; and its file, None if it is lost."""

    sent: Contribution | None
    grams: Path | None


def run(context: Context) -> Outcome:
    """Send the expert's body contribution. Counts of rare tokens stay in the journal."""
    settings, expert = context.settings, context.expert
    blank = body_manifest(expert.owner, expert, expert.digest, settings.statistics)
    work = BodyPass(expert, blank.exponents, settings.statistics.precision, settings.device)
    with closing(Ledger(context.ledger(blank))) as ledger:
        whole = context.pending(blank, work, ledger).complete()
        path = ledger.path((ledger.files()[-1] if whole is None else whole.file).name)
        if not path.is_file():
            return Outcome(None, None)
        grams = path.with_name(f"{path.stem}-sent.safetensors")
        withhold_rare(path, grams, settings.rare_below)
        item = context.outbox.contribution(grams, file_sha256(grams))
        counted = context.active("body")
        if item.digest not in counted and not context.outbox.may_leave(item):
            return Outcome(None, grams)
        if whole is not None:
            whole.note()
    if item.digest in counted:
        return Outcome(counted[item.digest], grams)
    supersedes = [row.digest for row in counted.values() if row.expert == expert.digest]
    return Outcome(context.send(item, supersedes), grams)
