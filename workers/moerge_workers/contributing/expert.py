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
from moerge_proto.experts import NewExpert, Parts
from moerge_workers.contributing.context import Context
from moerge_workers.leaving.history import Item
from moerge_workers.leaving.owner_key import signature
from moerge_workers.settings import Settings


class KeptError(Exception):
    """The expert may not leave now."""

    def __init__(self, item: Item) -> None:
        super().__init__(item.digest)
        self.item = item


def run(context: Context) -> None:
    """Register the whole expert; a dry run only shows it.

    Raises:
        KeptError: the coordinator lacks it, and its owner hasn't approved it.
    """
    try:
        register_expert(context, context.expert)
    except KeptError:
        if not context.settings.dry_run:
            raise


def register_expert(context: Context, expert: DenseExpert, parts: Parts | None = None) -> None:
    """Register an expert at the coordinator: the owner's, or with `parts` those of it.

    Raises:
        KeptError: the coordinator lacks it, and its owner hasn't approved it, or this is a dry run.
        WithdrawnError: it was withdrawn.
        MoergeError: the policy forbids it, or the coordinator refuses it.
    """
    new = NewExpert(
        domain=expert.domain,
        files=expert.files,
        license=expert.license,
        redistribute=context.settings.policy.redistribute,
        parts=parts,
    )
    signed = signature(context.settings.home, new.signed_by(context.expert.owner, expert.digest))
    registered = register(
        context.client,
        expert,
        new.model_copy(update={"signature": signed}),
        context.events,
        adapter=expert.adapter,
        change=not context.settings.dry_run,
        leaving=partial(_leaving, context, expert, parts),
    )
    context.outbox.settle([registered])


@contextmanager
def _leaving(
    context: Context, expert: DenseExpert, parts: Parts | None, digest: str, paths: Mapping[str, Path]
) -> Iterator[None]:
    """Context for sending an allowed expert's files, whole or as `parts`.

    Asks the owner about all files at once, and records each sending separately: config and tokenizer, and then the
    weights, or those of the expert's adapter alone.
    """
    body, adapter = "" if parts is None else parts.body, expert.adapter
    name = "expert" if parts is None else _parts(parts)
    whole = context.outbox.expert(expert.digest, expert_files(expert), name, body)
    require_allowed(context.settings, as_parts=parts is not None)
    if not context.outbox.may_leave(whole, context.replaced(body) if body else lambda: False):
        raise KeptError(whole)
    item = whole
    if digest != whole.digest:
        part = "adapter" if WEIGHTS in paths else "config and tokenizer"
        item = context.outbox.expert(digest, paths, part, body)
    elif adapter is not None:
        size = decimal((adapter / WEIGHTS).stat().st_size)
        context.events.say(
            f"the coordinator's processor rounds otherwise, so the merged MLPs leave, {decimal(whole.bytes)}, and not "
            f"the adapter, {size}"
            if parts is not None
            else "the coordinator has no base of this adapter that you may use, or merges it to other bytes, so the "
            f"whole expert leaves, {decimal(whole.bytes)}; the adapter alone has {size}, and suffices if its base is "
            "an expert there, yours or with redistribute = true"
        )
    with context.outbox.sending(item):
        yield


def _parts(parts: Parts) -> str:
    return "parts with fitted MLPs" if parts.fitted else "parts" if parts.own_head else "MLPs"


def require_allowed(settings: Settings, *, as_parts: bool = False) -> None:
    """Require a policy that allows expert weights; `as_parts`: of which only the parts leave."""
    if not settings.policy.expert_weights:
        todo = "provide it another way (moerge expert add --source), or set expert_weights = true"
        problem = "the coordinator doesn't have this expert, and the policy forbids sending expert weights"
        if as_parts:
            todo = (
                "set expert_weights = true: MLPs leave, last norm and head unless they are the seed's, and neither "
                "attention nor embedding"
            )
            problem = "a version needs the expert's parts, and the policy forbids sending expert weights"
        raise MoergeError(problem, where=str(settings.expert), todo=todo)
