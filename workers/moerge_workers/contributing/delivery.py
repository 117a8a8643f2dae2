"""Contributions at the coordinator: listing active ones, sending further ones."""

from collections.abc import Sequence
from pathlib import Path

from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.statistics_file import Kind
from moerge_workers.contributing.context import SOFTWARE, Context
from moerge_workers.leaving.history import Item
from moerge_workers.leaving.owner_key import signature


def active(context: Context, kind: Kind) -> dict[str, Contribution]:
    """Digest -> active contribution; records the state of all in the history."""
    rows = list(context.client.contributions(kind))
    context.outbox.settle(rows)
    return {row.digest: row for row in rows if row.active}


def send(context: Context, item: Item, supersedes: Sequence[str]) -> Contribution:
    """Upload and sign a contribution's file; it replaces the ones that it `supersedes`.

    The owner must have allowed it.
    """
    with context.outbox.sending(item, supersedes):
        title = f"uploading the {item.kind} contribution"
        context.client.upload(Path(item.place), context.events, title=title, compress=True)
        signed = signature(context.settings.home, context.expert.owner, item.digest)
        new = NewContribution(sha256=item.digest, supersedes=list(supersedes), signature=signed, software=SOFTWARE)
        return context.client.contribute(new)
