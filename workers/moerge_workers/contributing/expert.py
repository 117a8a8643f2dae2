"""The stage of the expert: registered, and sent if the coordinator lacks it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from moerge.client.register import register
from moerge.errors import MoergeError
from moerge_proto.experts import NewExpert
from moerge_workers.contributing.context import Context
from moerge_workers.leaving.history import Item


class KeptError(Exception):
    """The expert may not leave, at least not yet."""

    def __init__(self, item: Item) -> None:
        super().__init__(item.digest)
        self.item = item


def run(context: Context) -> bool:
    """Registers the expert. Returns whether the coordinator has it, or in a dry run would.

    Raises:
        MoergeError: the policy keeps it here, or the coordinator refuses it.
    """
    settings, expert = context.settings, context.expert
    new = NewExpert(
        domain=expert.domain,
        files=expert.files,
        license=expert.license,
        redistribute=settings.policy.redistribute,
    )
    try:
        registered = register(
            context.client,
            expert.folder,
            new,
            context.events,
            change=not settings.dry_run,
            leaving=partial(leaving, context),
        )
    except KeptError:
        if not settings.dry_run:
            return False
    else:
        context.outbox.settle([registered])
    if settings.policy.redistribute:
        context.events.say(
            "owners of other experts in a version may have it, with this expert's MLPs: redistribute = true"
        )
    return True


@contextmanager
def leaving(context: Context, digest: str, paths: Mapping[str, Path], trunk: str = "") -> Iterator[None]:
    """The time in which an expert leaves, if it may; `trunk`: the digest of the one that it is fitted to.

    Raises:
        KeptError: its owner doesn't let it leave, or in a dry run nothing does.
        MoergeError: the policy keeps expert weights here.
    """
    if not context.settings.policy.expert_weights:
        todo = "let the coordinator have it another way (moerge expert add --source), or set expert_weights = true"
        found = "the coordinator doesn't have this expert, and the policy keeps expert weights here"
        raise MoergeError(found, where=str(context.expert.folder), todo=todo)
    item = context.outbox.expert(digest, paths, trunk)
    if not context.outbox.may_leave(item, lambda: bool(trunk) and context.is_replaced(trunk)):
        raise KeptError(item)
    with context.outbox.sending(item):
        yield
