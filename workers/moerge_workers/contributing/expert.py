"""The stage of the expert: registers it, and sends it if the coordinator lacks it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from moerge.client.register import register
from moerge.errors import MoergeError
from moerge.models.adapters import is_adapter
from moerge.models.expert_folder import DenseExpert, expert_files
from moerge_proto.experts import Fitted, NewExpert
from moerge_workers.contributing.context import Context
from moerge_workers.leaving.history import Item
from moerge_workers.settings import Settings


class KeptError(Exception):
    """The expert may not leave now."""

    def __init__(self, item: Item) -> None:
        super().__init__(item.digest)
        self.item = item


def run(context: Context) -> bool:
    """Register the expert. Returns whether the coordinator has it, or in a dry run would.

    Raises:
        MoergeError: the policy forbids it, or the coordinator refuses it.
    """
    try:
        register_expert(context, context.expert)
    except KeptError:
        if not context.settings.dry_run:
            return False
    if context.settings.policy.redistribute:
        context.events.say(
            "redistribute = true: owners of other experts in a version may download it, with this expert's MLPs"
        )
    return True


def register_expert(context: Context, expert: DenseExpert, fitted: Fitted | None = None) -> None:
    """Register an expert at the coordinator: the owner's, or with `fitted` one fitted from it.

    Raises:
        KeptError: the coordinator lacks it, and its owner hasn't approved it, or this is a dry run.
        WithdrawnError: it was withdrawn.
        MoergeError: the policy forbids it, or the coordinator refuses it.
    """
    own, settings = fitted is None, context.settings
    is_merged = own and settings.expert_rank is None and is_adapter(settings.expert)
    new = NewExpert(
        domain=expert.domain,
        files=expert.files,
        license=expert.license,
        redistribute=own and context.settings.policy.redistribute,
        fitted=fitted,
    )
    registered = register(
        context.client,
        expert.folder,
        new,
        context.events,
        adapter=settings.expert if is_merged else None,
        change=own and not context.settings.dry_run,
        leaving=partial(_leaving, context, expert, trunk="" if fitted is None else fitted.trunk),
    )
    context.outbox.settle([registered])


@contextmanager
def _leaving(
    context: Context, expert: DenseExpert, digest: str, paths: Mapping[str, Path], *, trunk: str
) -> Iterator[None]:
    """Context for sending an allowed expert's files; `trunk` is the digest of the trunk that it is fitted to.

    Asks the owner about all files at once, and records each sending separately.
    """
    whole = context.outbox.expert(expert.digest, expert_files(expert.folder), trunk)
    require_allowed(context.settings)
    if not context.outbox.may_leave(whole, lambda: bool(trunk) and context.is_replaced(trunk)):
        raise KeptError(whole)
    item = whole if digest == whole.digest else context.outbox.expert(digest, paths, trunk, "config and tokenizer")
    with context.outbox.sending(item):
        yield


def require_allowed(settings: Settings) -> None:
    """Require a policy that allows expert weights."""
    if not settings.policy.expert_weights:
        todo = "provide it another way (moerge expert add --source), or set expert_weights = true"
        found = "the coordinator doesn't have this expert, and the policy forbids sending expert weights"
        raise MoergeError(found, where=str(settings.expert), todo=todo)
