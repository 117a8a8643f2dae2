"""Experts."""

from fastapi import APIRouter

from moerge_coordinator.domain import experts
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import DomainOwner, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, page, visible, visible_row
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.references import collect
from moerge_coordinator.storage.tables import ExpertRow
from moerge_proto.digests import Digest
from moerge_proto.experts import Expert, ExpertState, NewExpert, Purge, Purged, Withdraw, Withdrawal
from moerge_proto.messages import Page
from moerge_proto.owners import Role
from moerge_proto.problems import ProblemType

router = APIRouter(prefix="/experts", tags=["experts"], route_class=Route)


@router.post("", status_code=202)
def register(state: Coordinator, caller: OperatorOrOwner, new: NewExpert) -> Expert:
    """Registers uploaded files as the expert of a domain, or fetches them from a source that the operator allows.

    Config, tokenizer and tensor headers of uploaded files are checked before this answers; everything else afterwards.
    The same again changes nothing but `redistribute`, if its owner asks. Role: owner; with a source also operator.
    """
    expert = experts.register(state, caller, new)
    if expert.state is ExpertState.RECEIVED:
        state.workflows.start_expert(expert.digest, new.trunk)
    return expert


@router.post("/check", status_code=204)
def check(state: Coordinator, caller: DomainOwner, new: NewExpert) -> None:
    """Checks config and tokenizer before the weights are uploaded; the answer is empty, or the reason of a refusal.

    These small files are uploaded already, and are forgotten if they are refused. Role: owner.
    """
    experts.require_welcome(state, caller, new)


@router.get("")
def list_experts(state: Coordinator, caller: OperatorOrOwner, after: After = 0) -> Page[Expert]:
    """Lists experts; an owner sees its own. Role: operator or owner."""
    with state.database.reading() as session:
        query = visible(caller, ExpertRow)
        return page(session, query, ExpertRow.number, after, lambda row: message(Expert, row))


@router.get("/{digest}")
def show_expert(state: Coordinator, caller: OperatorOrOwner, digest: Digest) -> Expert:
    """One expert; an owner sees its own. Role: operator or owner."""
    with state.database.reading() as session:
        return message(Expert, visible_row(session, caller, ExpertRow, digest))


@router.post("/{digest}/withdraw")
def withdraw(state: Coordinator, caller: OperatorOrOwner, digest: Digest, how: Withdraw) -> Withdrawal:
    """Withdraws an expert, those fitted from it, and all their contributions (law 5). The same again changes nothing.

    Trunks that contain it are retired; if the current one does, the trunk that takes its place is being merged. Role:
    operator or owner.
    """
    with state.database.transaction("withdraw expert") as session:
        row = visible_row(session, caller, ExpertRow, digest)
        retired, served = withdraw_expert(session, row, serve=how.serve)
        expert, names, numbers = (
            message(Expert, row),
            [each.digest for each in retired],
            [each.number for each in served],
        )
    return Withdrawal(expert=expert, trunks=names, versions=numbers, remerge=state.workflows.start_remerge())


@router.post("/{digest}/purge")
def purge(state: Coordinator, caller: OperatorOrOwner, digest: Digest, how: Purge) -> Purged:
    """Removes a withdrawn expert's files, and the statistics sent for it, wherever nothing else needs them.

    Published versions that contain it keep their files until they are retired. Role: operator or owner.
    """
    if how.retire and caller.role is not Role.OPERATOR:
        raise RefusedError(ProblemType.FORBIDDEN, "an operator retires versions", where="retire")
    with state.database.transaction("purge expert") as session:
        row = visible_row(session, caller, ExpertRow, digest)
        purged, numbers = experts.purge(session, row, retire=how.retire)
    state.folders.drop(purged, numbers if how.retire else [])
    removed, size = collect(state.database, state.blobs)
    return Purged(removed=removed, bytes=size, versions=[] if how.retire else numbers)
