"""Contributions, accepted by workflows."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from moerge_coordinator.domain.contributions import require_sent
from moerge_coordinator.domain.owners import own_name
from moerge_coordinator.domain.withdrawal import withdraw_contribution
from moerge_coordinator.rest.auth import DomainOwner, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, Newest, page, visible, visible_row
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import ContributionRow
from moerge_proto.contributions import Contribution, Kind, NewContribution, Submission
from moerge_proto.digests import Digest
from moerge_proto.messages import Page
from moerge_proto.workflows import Workflow

router = APIRouter(tags=["contributions"], route_class=Route)


@router.put("/contributions/{digest}", status_code=202, responses={429: {}})
def contribute(state: Coordinator, caller: DomainOwner, digest: Digest, submission: Submission) -> Workflow:
    """Starts a workflow that accepts an uploaded statistics file; its result is the digest. Idempotent.

    An owner has one such workflow at a time.
    """
    owner, new = own_name(caller), NewContribution(sha256=digest, **dict(submission))
    require_sent(state, owner, new)
    once = list(dict.fromkeys(new.supersedes))
    return state.workflows.submit_contribution(owner, new.model_copy(update={"supersedes": once}))


@router.get("/contributions")
def list_contributions(
    state: Coordinator,
    caller: OperatorOrOwner,
    after: After = 0,
    newest: Newest = False,
    kind: Annotated[Kind, Query(description="Contributions of this kind.")] = "router",
) -> Page[Contribution]:
    """Lists the contributions of a kind; for an owner, only its own."""
    query = visible(caller, ContributionRow).where(ContributionRow.kind == kind)
    with state.database.reading() as session:
        return page(session, query, ContributionRow.number, after, partial(message, Contribution), newest=newest)


@router.get("/contributions/{digest}")
def show_contribution(state: Coordinator, caller: OperatorOrOwner, digest: Digest) -> Contribution:
    """One contribution; for an owner, only its own."""
    with state.database.reading() as session:
        return message(Contribution, visible_row(session, caller, ContributionRow, digest))


@router.post("/contributions/{digest}/withdraw")
def withdraw(state: Coordinator, caller: OperatorOrOwner, digest: Digest) -> Contribution:
    """Excludes a contribution from later versions (law 5). Idempotent."""
    with state.database.transaction("withdraw contribution") as session:
        row = visible_row(session, caller, ContributionRow, digest)
        withdraw_contribution(session, row)
        return message(Contribution, row)
