"""Contributions, accepted by workflows."""

import asyncio
import time
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from moerge.errors import CoordinatorError
from moerge_coordinator.domain.contributions import require_sent
from moerge_coordinator.domain.owners import own_name
from moerge_coordinator.domain.withdrawal import withdraw_contribution
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import DomainOwner, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, Newest, page, visible, visible_row
from moerge_coordinator.rest.state import Coordinator, State
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import ContributionRow
from moerge_proto.contributions import Contribution, NewContribution, Submission
from moerge_proto.digests import Digest
from moerge_proto.messages import Page
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import Kind
from moerge_proto.workflows import Workflow, WorkflowState

router = APIRouter(tags=["contributions"], route_class=Route)
_MOST_SECONDS = 300.0
_LACKING = {"kind", "split", "trunk", "shards", "effective_rank", "warnings"}
"""Fields that trunk contributions lacked in their former separate list."""


@router.put("/contributions/{digest}", status_code=202)
def contribute(state: Coordinator, caller: DomainOwner, digest: Digest, asked: Submission) -> Workflow:
    """Starts a workflow that checks an uploaded statistics file and accepts it as a contribution; its result is the
    digest. Idempotent. Role: owner.
    """
    return _start(state, caller, NewContribution(sha256=digest, **dict(asked)))


def _start(state: State, caller: Identity, new: NewContribution) -> Workflow:
    owner = own_name(caller)
    require_sent(state, owner, new)
    return state.workflows.start_contribution(owner, new)


@router.get("/contributions")
def list_contributions(
    state: Coordinator,
    caller: OperatorOrOwner,
    after: After = 0,
    newest: Newest = False,
    kind: Annotated[Kind, Query(description="Contributions of this kind.")] = "router",
) -> Page[Contribution]:
    """Lists the contributions of a kind; for an owner, only its own. Role: operator or owner."""
    query = visible(caller, ContributionRow).where(ContributionRow.kind == kind)
    with state.database.reading() as session:
        return page(session, query, ContributionRow.number, after, partial(_view, caller), newest=newest)


def _view(caller: Identity, row: ContributionRow) -> Contribution:
    """The caller's view; owners don't see the rank, unknown to workers of earlier builds."""
    told = message(Contribution, row)
    return told if caller.role is Role.OPERATOR else told.model_copy(update={"effective_rank": None})


@router.get("/contributions/{digest}")
def show_contribution(state: Coordinator, caller: OperatorOrOwner, digest: Digest) -> Contribution:
    """One contribution; for an owner, only its own. Role: operator or owner."""
    with state.database.reading() as session:
        return _view(caller, visible_row(session, caller, ContributionRow, digest))


@router.post("/contributions/{digest}/withdraw")
def withdraw(state: Coordinator, caller: OperatorOrOwner, digest: Digest) -> Contribution:
    """Excludes a contribution from later versions and trunks (law 5). Idempotent.

    Retires trunks solved from a trunk contribution, and starts a remerge if the current one is retired. Role: operator
    or owner.
    """
    with state.database.transaction("withdraw contribution") as session:
        row = visible_row(session, caller, ContributionRow, digest)
        withdraw_contribution(session, row)
    if row.kind == "trunk":
        state.workflows.start_remerge()
    return _view(caller, row)


# --- former routes of each kind, removed in the next version


async def _contribute_and_wait(state: State, caller: Identity, new: NewContribution) -> Contribution:
    """Waits without holding a thread."""
    workflow, pause, end = await run_in_threadpool(_start, state, caller, new), 0.02, time.monotonic() + _MOST_SECONDS
    while workflow.state is WorkflowState.RUNNING:
        if time.monotonic() > end:
            what = "the contribution is still being checked"
            raise RefusedError(ProblemType.UNAVAILABLE, what, todo="try again", retry_after=10)
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.5)
        found = await run_in_threadpool(state.workflows.find, workflow.id)
        workflow = found or workflow
    if workflow.problem is not None:
        raise CoordinatorError(workflow.problem)
    return await run_in_threadpool(show_contribution, state, caller, new.sha256)


@router.post("/contributions", status_code=201, deprecated=True)
async def contribute_and_wait(state: Coordinator, caller: DomainOwner, new: NewContribution) -> Contribution:
    """Takes an uploaded statistics file as a contribution, and answers once it is checked. Role: owner."""
    return await _contribute_and_wait(state, caller, new)


@router.post("/trunk-contributions", status_code=201, deprecated=True, response_model_exclude=_LACKING)
async def contribute_trunk_and_wait(state: Coordinator, caller: DomainOwner, new: NewContribution) -> Contribution:
    """Takes an uploaded statistics file as a contribution, and answers once it is checked. Role: owner."""
    return await _contribute_and_wait(state, caller, new)


@router.get("/trunk-contributions", deprecated=True, response_model_exclude={"items": {"__all__": _LACKING}})
def list_trunk_contributions(state: Coordinator, caller: OperatorOrOwner, after: After = 0) -> Page[Contribution]:
    """Lists trunk contributions; for an owner, only its own. Role: operator or owner."""
    return list_contributions(state, caller, after, kind="trunk")


@router.post("/trunk-contributions/{digest}/withdraw", deprecated=True, response_model_exclude=_LACKING)
def withdraw_trunk_contribution(state: Coordinator, caller: OperatorOrOwner, digest: Digest) -> Contribution:
    """Excludes a trunk contribution from later trunks. Role: operator or owner."""
    return withdraw(state, caller, digest)
