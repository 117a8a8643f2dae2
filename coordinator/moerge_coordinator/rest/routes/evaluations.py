"""Evaluations: owners' reports on versions, and the paper's table of them."""

from fastapi import APIRouter
from sqlalchemy import select

from moerge_coordinator.domain import evaluations, versions
from moerge_coordinator.domain.owners import own_name, require_own_domain
from moerge_coordinator.rest.auth import Anyone, DomainOwner, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, Number, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import EvaluationRow
from moerge_proto.evaluations import Evaluation, NewEvaluation, VersionTable
from moerge_proto.messages import Page
from moerge_proto.owners import Role

router = APIRouter(prefix="/versions/{number}", tags=["evaluations"], route_class=Route)


@router.post("/evaluations", status_code=201)
def evaluate(state: Coordinator, caller: DomainOwner, number: Number, new: NewEvaluation) -> Evaluation:
    """Accepts an owner's evaluation of a version; it replaces an earlier one of the domain in the table. Idempotent."""
    owner = own_name(caller)
    require_own_domain(caller, new.domain)
    with state.database.transaction("evaluate version") as session:
        return evaluations.evaluate(session, owner, number, new)


@router.get("/evaluations")
def list_evaluations(state: Coordinator, caller: OperatorOrOwner, number: Number, after: After = 0) -> Page[Evaluation]:
    """Lists a version's evaluations, including replaced ones; for an owner, only its own."""
    with state.database.reading() as session:
        versions.find(session, number)
        query = select(EvaluationRow).where(EvaluationRow.version == number)
        if caller.role is Role.OWNER:
            query = query.where(EvaluationRow.owner == caller.owner)
        return page(session, query, EvaluationRow.number, after, lambda row: message(Evaluation, row))


@router.get("/table")
def show_table(state: Coordinator, caller: Anyone, number: Number) -> VersionTable:
    """The paper's normalised table of a version, from its existing evaluations.

    For an owner, only its own domains' scores, and the average.
    """
    with state.database.reading() as session:
        return evaluations.visible_table(session, versions.find(session, number), caller.owner)
