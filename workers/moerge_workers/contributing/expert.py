"""The stage of the expert: registers it, and sends it if the coordinator lacks it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.filesize import decimal

from moerge.client.register import register
from moerge.errors import MoergeError
from moerge.models.adapters import WEIGHTS
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
    """Register the expert; returns whether the coordinator has it, or in a dry run would."""
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
    is_original = fitted is None
    adapter = expert.adapter if is_original else None
    new = NewExpert(
        domain=expert.domain,
        files=expert.files,
        license=expert.license,
        redistribute=is_original and context.settings.policy.redistribute,
        fitted=fitted,
    )
    registered = register(
        context.client,
        expert,
        new,
        context.events,
        adapter=adapter,
        change=is_original and not context.settings.dry_run,
        leaving=partial(_leaving, context, expert, adapter, "" if fitted is None else fitted.body),
    )
    context.outbox.settle([registered])


@contextmanager
def _leaving(
    context: Context, expert: DenseExpert, adapter: Path | None, body: str, digest: str, paths: Mapping[str, Path]
) -> Iterator[None]:
    """Context for sending an allowed expert's files; `body`: digest of the body that it is fitted to.

    Asks the owner about all files at once, and records each sending separately: config and tokenizer, and then the
    whole expert, or the weights of its `adapter` alone.
    """
    whole = context.outbox.expert(expert.digest, expert_files(expert), body)
    require_allowed(context.settings)
    if not context.outbox.may_leave(whole, lambda: bool(body) and context.is_replaced(body)):
        raise KeptError(whole)
    item = whole
    if digest != whole.digest:
        part = "adapter" if WEIGHTS in paths else "config and tokenizer"
        item = context.outbox.expert(digest, paths, body, part)
    elif adapter is not None:
        context.events.say(
            "the coordinator has no base of this adapter that you may use, or merges it to other bytes, so the whole "
            f"expert leaves, {decimal(whole.bytes)}; the adapter alone has "
            f"{decimal((adapter / WEIGHTS).stat().st_size)}, and suffices if its base is an expert there, yours or "
            "with redistribute = true"
        )
    with context.outbox.sending(item):
        yield


def require_allowed(settings: Settings) -> None:
    """Require a policy that allows expert weights."""
    if not settings.policy.expert_weights:
        todo = "provide it another way (moerge expert add --source), or set expert_weights = true"
        problem = "the coordinator doesn't have this expert, and the policy forbids sending expert weights"
        raise MoergeError(problem, where=str(settings.expert), todo=todo)
