"""The registration of the expert's parts, which leave if the coordinator lacks them."""

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
from moerge_workers.contributing.exchange import Exchange
from moerge_workers.outgoing.history import Item
from moerge_workers.outgoing.owner_key import signature
from moerge_workers.settings import Settings


class KeptError(Exception):
    """The expert's parts may not leave now."""

    def __init__(self, item: Item) -> None:
        super().__init__(item.digest)
        self.item = item


def register_expert(exchange: Exchange, expert: DenseExpert, parts: Parts) -> None:
    """Register the folder of the expert's `parts` at the coordinator.

    Raises:
        KeptError: the coordinator lacks it, and its owner hasn't approved it, or this is a dry run.
        WithdrawnError: it was withdrawn.
        MoergeError: the policy forbids it, or the coordinator refuses it.
    """
    outbox, settings = exchange.outbox, exchange.outbox.settings
    new = NewExpert(
        domain=expert.domain,
        files=expert.files,
        license=expert.license,
        redistribute=settings.policy.redistribute,
        parts=parts,
    )
    signed = signature(settings.home, new.signed_by(expert.owner, expert.digest))
    registered = register(
        exchange.client,
        expert,
        new.model_copy(update={"signature": signed}),
        outbox.events,
        adapter=expert.adapter,
        again=settings.rejoin,
        change=not settings.dry_run,
        leaving=partial(_leaving, exchange, expert, parts),
    )
    outbox.settle([registered])


@contextmanager
def _leaving(
    exchange: Exchange, expert: DenseExpert, parts: Parts, digest: str, paths: Mapping[str, Path]
) -> Iterator[None]:
    """Context for sending the files of an allowed expert's parts.

    Asks the owner about all files at once, and records each sending separately: config and tokenizer, and then the
    weights, or those of the expert's adapter alone.
    """
    body, adapter, outbox = parts.body, expert.adapter, exchange.outbox
    whole = outbox.expert(expert.digest, expert_files(expert), _named(parts), body)
    require_allowed(outbox.settings)
    if not outbox.may_leave(whole, exchange.replaced(body)):
        raise KeptError(whole)
    item = whole
    if digest != whole.digest:
        part = "adapter" if WEIGHTS in paths else "config and tokenizer"
        item = outbox.expert(digest, paths, part, body)
    elif adapter is not None:
        size = decimal((adapter / WEIGHTS).stat().st_size)
        outbox.say(
            f"the coordinator's processor rounds otherwise, so the merged MLPs leave, {decimal(whole.bytes)}, and not "
            f"the adapter, {size}"
        )
    with outbox.sending(item):
        yield


def _named(parts: Parts) -> str:
    return "parts with fitted MLPs" if parts.fitted else "parts" if parts.own_head else "MLPs"


def require_allowed(settings: Settings) -> None:
    """Require a policy that allows expert weights."""
    if not settings.policy.expert_weights:
        todo = (
            "set expert_weights = true: MLPs leave, last norm and head unless they are the seed's, and neither "
            "attention nor embedding"
        )
        problem = "a version needs the expert's parts, and the policy forbids sending expert weights"
        raise MoergeError(problem, where=str(settings.expert), todo=todo)
