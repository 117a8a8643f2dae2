"""Sums over the inputs of the owner's own expert, for body and head contributions."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from moerge.files import file_sha256
from moerge.statistics.passes import Pass
from moerge_proto.contributions import Contribution
from moerge_proto.statistics_file import Manifest, StatisticsFile
from moerge_workers.contributing.context import Context
from moerge_workers.leaving.ledger import Ledger


@dataclass(frozen=True)
class Outcome:
    """The active contribution, None without the owner's approval; and its file, None if it is lost."""

    sent: Contribution | None
    file: Path | None


def contribute(
    context: Context,
    blank: Manifest,
    work: Pass,
    outgoing: Callable[[Path], Path],
    outdated: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Send a contribution over all documents; it replaces the earlier one of the expert that the sent file names.

    Args:
        blank: the manifest without sums.
        outgoing: gives the file to send, from the one with the sums.
        outdated: whether the question to the owner is outdated.
    """
    with closing(Ledger(context.ledger(blank))) as ledger:
        whole = context.pending(blank, work, ledger).complete()
        path = ledger.path((ledger.files()[-1] if whole is None else whole.file).name)
        if not path.is_file():
            return Outcome(None, None)
        file = outgoing(path)
        item = context.outbox.contribution(file, file_sha256(file))
        counted = context.active(blank.kind)
        if item.digest not in counted and not context.outbox.may_leave(item, outdated):
            return Outcome(None, file)
        if whole is not None:
            whole.note()
    if item.digest in counted:
        return Outcome(counted[item.digest], file)
    with StatisticsFile(file) as opened:
        expert = opened.manifest.expert
    supersedes = [row.digest for row in counted.values() if row.expert == expert]
    return Outcome(context.send(item, supersedes), file)
