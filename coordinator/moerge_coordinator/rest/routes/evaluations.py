"""Evaluations: what owners report of versions, and the paper's table from it."""

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import Anyone, DomainOwner, OperatorOrOwner, own_name, require_own_domain
from moerge_coordinator.rest.lists import After, Number, page
from moerge_coordinator.rest.routes.versions import find_version, require_served
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage.database import reading, transaction
from moerge_coordinator.storage.tables import EvaluationRow, ExpertRow, TrunkRow, VersionRow
from moerge_proto.evaluations import Evaluation, NewEvaluation, VersionTable
from moerge_proto.messages import Page
from moerge_proto.owners import Role
from moerge_proto.problems import ProblemType
from moerge_proto.versions import Lineage

router = APIRouter(prefix="/versions/{number}", tags=["evaluations"])


@router.post("/evaluations", status_code=201)
def evaluate(request: Request, caller: DomainOwner, number: Number, new: NewEvaluation) -> Evaluation:
    """Takes an owner's evaluation of a version. A later one of the same domain takes its place in the table.

    The same again changes nothing. Role: owner.
    """
    owner = own_name(caller)
    require_own_domain(caller, new.domain)
    with transaction(request.app.state.engine) as session:
        version = find_version(session, number)
        query = select(EvaluationRow).where(EvaluationRow.version == number)
        known = session.scalar(query.where(EvaluationRow.digest == new.digest))
        if known is not None:
            return views.evaluation(known)
        require_served(version)
        _require_of(session, version, new)
        for earlier in session.scalars(query.where(EvaluationRow.domain == new.domain, EvaluationRow.active)):
            earlier.active = False
        row = EvaluationRow(
            digest=new.digest,
            version=number,
            owner=owner,
            domain=new.domain,
            active=True,
            sums=new.model_dump(mode="json"),
        )
        session.add(row)
        session.flush()
        return views.evaluation(row)


def _require_of(session: Session, version: VersionRow, new: NewEvaluation) -> None:
    """Requires that an evaluation can be of this version: its domain, expert, layers and experts.

    Raises:
        RefusedError: names the field.
    """
    if new.number != version.number:
        found = f"made of version {new.number}, sent to version {version.number}"
        todo = f"send it to /v1/versions/{new.number}/evaluations"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="number", todo=todo)
    made = Lineage.model_validate(version.lineage)
    if new.domain not in made.domains:
        found = f"version {version.number} has the domains {', '.join(made.domains)}; not {new.domain!r}"
        todo = "evaluate a version that has your domain's expert"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="domain", todo=todo)
    slot = select(ExpertRow).where(ExpertRow.digest == made.experts[made.domains.index(new.domain)])
    expert = session.scalars(slot).one().trained  # the dense one, if the version has its fitted MLPs
    if new.expert != expert:
        found = f"version {version.number} has the expert {expert} of {new.domain!r}, not {new.expert}"
        todo = "compare with the dense expert that is in the version"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="expert", todo=todo)
    layers = session.scalars(select(TrunkRow.layers).where(TrunkRow.digest == made.trunk)).one()
    shape = layers, len(made.experts)
    if len(new.routed) != layers or any(len(counts) != shape[1] for counts in new.routed):
        found = f"expected counts of {layers} layers x {shape[1]} experts"
        todo = "count them with this version"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="routed", todo=todo)


@router.get("/evaluations")
def list_evaluations(request: Request, caller: OperatorOrOwner, number: Number, after: After = 0) -> Page[Evaluation]:
    """Lists a version's evaluations, those that others took the place of too; an owner sees its own.

    Role: operator or owner.
    """
    with reading(request.app.state.engine) as session:
        find_version(session, number)
        query = select(EvaluationRow).where(EvaluationRow.version == number)
        if caller.role is Role.OWNER:
            query = query.where(EvaluationRow.owner == caller.owner)
        return page(session, query, EvaluationRow.number, after, views.evaluation)


@router.get("/table")
def show_table(request: Request, caller: Anyone, number: Number) -> VersionTable:
    """The paper's normalised table of a version, as far as its domains' owners have evaluated it.

    An owner sees its own domains' scores, and the average. Role: any.
    """
    with reading(request.app.state.engine) as session:
        table = views.table(session, find_version(session, number))
    if caller.role is Role.OWNER:
        own = [score for score in table.scores if score.owner == caller.owner]
        return table.model_copy(update={"scores": own})
    return table
