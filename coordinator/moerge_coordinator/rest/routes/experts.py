"""Experts."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from moerge_coordinator.domain import experts
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import DomainOwner, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, page, visible, visible_row
from moerge_coordinator.rest.state import Coordinator, State
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.references import collect
from moerge_coordinator.storage.tables import ExpertRow
from moerge_proto.digests import Digest
from moerge_proto.experts import Expert, ExpertState, NewExpert, Purge, Purged, Withdraw, Withdrawal
from moerge_proto.messages import Page
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType

router = APIRouter(prefix="/experts", tags=["experts"], route_class=Route)


@router.post("", status_code=202)
async def register(state: Coordinator, caller: DomainOwner, new: NewExpert) -> Expert:
    """Registers a domain's expert, from uploaded files.

    Checks config, tokenizer and tensor headers before it answers, and everything else afterwards. Idempotent, except
    that its owner can change `redistribute`.
    """
    async with state.uploads.turn(_check(caller)):
        return await run_in_threadpool(_registered, state, caller, new)


def _registered(state: State, caller: Identity, new: NewExpert) -> Expert:
    expert = experts.register(state, caller, new)
    if expert.state is ExpertState.RECEIVED:
        state.workflows.start_expert(expert.digest)
    return expert


def _check(caller: Identity) -> str:
    """The turn of an owner's checks of small files, which take memory: one at a time."""
    return f"check {caller.owner or ''}"


@router.post("/check", status_code=204)
async def check(state: Coordinator, caller: DomainOwner, new: NewExpert) -> None:
    """Checks an expert's uploaded config and tokenizer before the upload of its weights.

    The answer is empty, or the problem; refused files are discarded.
    """
    async with state.uploads.turn(_check(caller)):
        await run_in_threadpool(experts.require_welcome, state, caller, new)


@router.get("")
def list_experts(state: Coordinator, caller: OperatorOrOwner, after: After = 0) -> Page[Expert]:
    """Lists experts; for an owner, only its own."""
    with state.database.reading() as session:
        query = visible(caller, ExpertRow)
        return page(session, query, ExpertRow.number, after, lambda row: message(Expert, row))


@router.get("/{digest}")
def show_expert(state: Coordinator, caller: OperatorOrOwner, digest: Digest) -> Expert:
    """One expert; for an owner, only its own."""
    with state.database.reading() as session:
        return message(Expert, visible_row(session, caller, ExpertRow, digest))


@router.post("/{digest}/withdraw")
def withdraw(state: Coordinator, caller: OperatorOrOwner, digest: Digest, how: Withdraw) -> Withdrawal:
    """Withdraws an expert and its contributions (law 5). Idempotent."""
    with state.database.transaction("withdraw expert") as session:
        row = visible_row(session, caller, ExpertRow, digest)
        served = withdraw_expert(session, row, serve=how.serve)
        return Withdrawal(expert=message(Expert, row), versions=[item.number for item in served if item.part is None])


@router.post("/{digest}/purge")
def purge(state: Coordinator, caller: OperatorOrOwner, digest: Digest, how: Purge) -> Purged:
    """Removes a withdrawn expert's files and statistics, except files needed elsewhere.

    Published versions that contain it keep their files until their retirement.
    """
    if how.retire and caller.role is not Role.OPERATOR:
        raise RefusedError(ProblemType.FORBIDDEN, "only an operator may retire versions", where="retire")
    with state.database.transaction("purge expert") as session:
        row = visible_row(session, caller, ExpertRow, digest)
        purged, numbers, retired = experts.purge(session, row, retire=how.retire)
    state.folders.drop(purged, retired)
    removed, size = collect(state.database, state.blobs)
    return Purged(removed=removed, bytes=size, versions=[] if how.retire else numbers)
