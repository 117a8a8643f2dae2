"""Evaluations: owners' reports on versions."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import versions
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import message, version_table
from moerge_coordinator.storage.tables import BodyRow, EvaluationRow, ExpertRow, VersionRow, tell
from moerge_proto.evaluations import Evaluation, NewEvaluation, VersionTable
from moerge_proto.problems import ProblemType


def evaluate(session: Session, owner: str, number: int, new: NewEvaluation) -> Evaluation:
    """Accepts an owner's evaluation of a served version; it replaces an earlier one. Idempotent."""
    version = versions.find(session, number)
    query = select(EvaluationRow).where(EvaluationRow.version == number)
    known = session.scalar(query.where(EvaluationRow.digest == new.digest))
    if known is not None:
        return message(Evaluation, known)
    versions.find_served(session, number)
    _require_of(session, version, new)
    for earlier in session.scalars(query.where(EvaluationRow.domain == new.domain, EvaluationRow.active)):
        earlier.active = False
    row = EvaluationRow(digest=new.digest, version=number, owner=owner, domain=new.domain, active=True, sums=new)
    session.add(row)
    session.flush()
    tell(session, f"evaluation of version {number} on {new.domain} has arrived from {owner}")
    return message(Evaluation, row)


def visible_table(session: Session, version: VersionRow, owner: str | None) -> VersionTable:
    """A version's table: for an owner, its own domains' scores and the average; for None, everything."""
    table = version_table(session, version)
    if owner is None:
        return table
    return table.model_copy(update={"scores": [score for score in table.scores if score.owner == owner]})


def _require_of(session: Session, version: VersionRow, new: NewEvaluation) -> None:
    """Requires that an evaluation can be of this version: its domain, expert, layers and experts."""

    def refused(where: str, problem: str, todo: str) -> RefusedError:
        return RefusedError(ProblemType.INVALID_REQUEST, problem, where=where, todo=todo)

    number, lineage = version.number, version.lineage
    if new.number != number:
        raise refused("number", f"made of version {new.number}, sent to {number}", f"send it for version {new.number}")
    if new.domain not in lineage.domains:
        problem = f"version {number} has the domains {', '.join(lineage.domains)}; not {new.domain!r}"
        raise refused("domain", problem, "evaluate a version that has your domain's expert")
    slot = select(ExpertRow).where(ExpertRow.digest == lineage.experts[lineage.domains.index(new.domain)])
    expert = session.scalars(slot).one().parts_of
    if new.expert != expert:
        problem = f"version {number} has the expert {expert} of {new.domain!r}, not {new.expert}"
        raise refused("expert", problem, "compare with the version's dense expert")
    layers = session.scalars(select(BodyRow.layers).where(BodyRow.digest == lineage.body)).one()
    if [len(counts) for counts in new.routed] != [len(lineage.experts)] * layers:
        problem = f"expected counts of {layers} layers x {len(lineage.experts)} experts"
        raise refused("routed", problem, "count them with this version")
