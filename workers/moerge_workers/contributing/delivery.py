"""Contributions at the coordinator: those that count, and how a further one is sent."""

from collections.abc import Sequence
from pathlib import Path

from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.statistics_file import Kind
from moerge_workers.contributing.context import SOFTWARE, Context
from moerge_workers.leaving.history import Item
from moerge_workers.leaving.owner_key import signature


def active(context: Context, kind: Kind) -> dict[str, Contribution]:
    """Digest -> contribution, of those that count; the state of all goes to the history."""
    rows = list(context.client.contributions(kind))
    context.outbox.settle(rows)
    return {row.digest: row for row in rows if row.active}


def send(context: Context, item: Item, supersedes: Sequence[str]) -> Contribution:
    """Uploads and signs a contribution's file, and has it count in the place of those that it `supersedes`.

    The owner must have let it leave.
    """
    with context.outbox.sending(item, supersedes):
        title = f"uploading the {item.kind} contribution"
        context.client.upload(Path(item.place), context.events, title=title, compress=True)
        signed = signature(context.settings.home, context.expert.owner, item.digest)
        new = NewContribution(sha256=item.digest, supersedes=list(supersedes), signature=signed, software=SOFTWARE)
        return context.client.contribute(new)
