"""Contributions at the coordinator: those that count, and how a further one is sent."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from moerge_proto.contributions import Contribution, NewContribution, TrunkContribution
from moerge_workers.contributing.context import SOFTWARE, Context
from moerge_workers.leaving.history import Item
from moerge_workers.leaving.owner_key import signature

Row = TypeVar("Row", Contribution, TrunkContribution)


def active(context: Context, rows: Iterable[Row]) -> dict[str, Row]:
    """Digest -> contribution, of those that count; the state of all goes to the history."""
    every = list(rows)
    context.outbox.settle(every)
    return {row.digest: row for row in every if row.active}


def send(context: Context, item: Item, supersedes: Sequence[str], post: Callable[[NewContribution], Row]) -> Row:
    """Uploads and signs a contribution's file, and has it count in the place of those that it `supersedes`.

    The owner must have let it leave. `post` is the client's call for its kind.
    """
    with context.outbox.sending(item, supersedes):
        title = f"uploading the {item.kind} contribution"
        context.client.upload(Path(item.place), context.events, title=title, compress=True)
        signed = signature(context.settings.home, context.expert.owner, item.digest)
        new = NewContribution(sha256=item.digest, supersedes=list(supersedes), signature=signed, software=SOFTWARE)
        return post(new)
