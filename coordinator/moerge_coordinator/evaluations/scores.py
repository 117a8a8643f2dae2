"""Scores of versions that owners and operators report, and a version's card of them."""

from collections.abc import Callable, Iterable

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from moerge.versions.card_scores import ScoreRow, scores_text, tasks_text
from moerge_coordinator.domain import versions
from moerge_coordinator.domain.owners import own_name, require_own_domain
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import BodyRow, EvaluationRow, ExpertRow, VersionRow, tell
from moerge_proto.evaluations import MAX_SCORES, Evaluation, NewEvaluation, Perplexity, VersionTable
from moerge_proto.owners import Identity
from moerge_proto.problems import ProblemType
from moerge_proto.version_names import version_name

MOST_ROWS = 10 * MAX_SCORES
"""Scores of a version that a reporter may send, replaced ones included."""


def evaluate(session: Session, caller: Identity, name: int | str, new: NewEvaluation) -> list[Evaluation]:
    """Accepts scores of a served version. Each replaces the earlier one of the same reporter and name. Idempotent.

    Perplexities are of the caller's domains. An owner needs a ready expert in the version.
    """
    version = versions.find(session, name)
    number, view = version.number, view_of(version)
    own = select(EvaluationRow).where(EvaluationRow.version == number, EvaluationRow.owner == caller.owner)
    if known := list(session.scalars(own.where(EvaluationRow.digest == new.digest).order_by(EvaluationRow.number))):
        return [view(row) for row in known]
    versions.require_served(version)
    if (made := version_name(new.number, new.part)) != str(name):
        problem, todo = f"made of version {made}, sent to {name}", f"send it for version {made}"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="number", todo=todo)
    for score in new.scores:
        if isinstance(score, Perplexity):
            own_name(caller)
            require_own_domain(caller, score.domain)
            _require_of(session, version, score)
    if caller.owner is not None:
        versions.require_member(session, caller.owner, version, "ask an operator to report the results")
    there = session.scalar(own.with_only_columns(func.count())) or 0
    if there + len(new.scores) > MOST_ROWS:
        problem = f"you have reported {there:,} scores of version {name}; at most {MOST_ROWS:,} are kept"
        raise RefusedError(ProblemType.OVER_QUOTA, problem, where="scores", todo="report scores of a later version")
    names = [score.name for score in new.scores]
    for earlier in session.scalars(own.where(EvaluationRow.active, EvaluationRow.name.in_(names))):
        earlier.active = False
    fields = {"version": number, "owner": caller.owner, "digest": new.digest, "active": True}
    rows = [EvaluationRow(**fields, kind=score.kind, name=score.name, score=score) for score in new.scores]
    session.add_all(rows)
    session.flush()
    on = names[0] if len(names) == 1 else f"{len(names)} tasks"
    tell(session, f"evaluation of version {name} on {on} has arrived from {caller.owner or 'an operator'}")
    return [view(row) for row in rows]


def view_of(version: VersionRow) -> Callable[[EvaluationRow], Evaluation]:
    """A view of a version's scores as messages."""
    named = {"version": version.whole, "part": version.part}
    return lambda row: message(Evaluation, row).model_copy(update=named)


def visible(number: int, owner: str | None) -> Select[EvaluationRow]:
    """The scores of a version; for an owner, the operators' and its own."""
    query = select(EvaluationRow).where(EvaluationRow.version == number)
    return query if owner is None else query.where(or_(EvaluationRow.owner.is_(None), EvaluationRow.owner == owner))


def active(session: Session, version: VersionRow, owner: str | None = None) -> list[Evaluation]:
    """The active scores of a version, oldest first, that the owner may see; for None all."""
    query = visible(version.number, owner).where(EvaluationRow.active).order_by(EvaluationRow.number)
    return list(map(view_of(version), session.scalars(query)))


def visible_table(session: Session, version: VersionRow, owner: str | None) -> VersionTable:
    """A version's table: for an owner, its own domains' scores and the average; for None, everything."""
    query = visible(version.number, None).where(EvaluationRow.active, EvaluationRow.kind == "perplexity")
    table = table_of(session, version, map(view_of(version), session.scalars(query)))
    scores = [score for score in table.scores if owner in (None, score.owner)]
    return table.model_copy(update={"scores": scores})


def table_of(session: Session, version: VersionRow, rows: Iterable[Evaluation]) -> VersionTable:
    """A version's table from these active scores; averages leave out experts that are the seed."""
    lineage, model = version.lineage, select(BodyRow.model).where(BodyRow.digest == version.lineage.body)
    seeds = {*session.scalars(select(ExpertRow.digest).where(ExpertRow.parts_of == model.scalar_subquery()))}
    named = [domain for domain, digest in zip(lineage.domains, lineage.experts, strict=True) if digest in seeds]
    result = VersionTable.of(version.whole, lineage.domains, rows, named)
    return result.model_copy(update={"part": version.part})


def card_scores(session: Session, version: VersionRow, owner: str | None) -> str:
    """A version's scores in its card, as far as the owner may see them; for None all."""
    table = visible_table(session, version, owner)
    rows = [ScoreRow(item.domain, item.tokens, item.dense, item.version, item.normalised) for item in table.scores]
    text = "on held-out documents, which each owner measured on its own data"
    reported = tasks_text(active(session, version, owner))
    return "\n".join(filter(None, [scores_text(text, rows, table.average, table.missing), reported]))


def _require_of(session: Session, version: VersionRow, sums: Perplexity) -> None:
    """Requires that sums can be of this version: its domain, expert, layers and experts."""

    def refused(where: str, problem: str, todo: str) -> RefusedError:
        return RefusedError(ProblemType.INVALID_REQUEST, problem, where=where, todo=todo)

    number, lineage = version.name, version.lineage
    if sums.domain not in lineage.domains:
        problem = f"version {number} has the domains {', '.join(lineage.domains)}; not {sums.domain!r}"
        raise refused("domain", problem, "evaluate a version that has your domain's expert")
    slot = select(ExpertRow).where(ExpertRow.digest == lineage.experts[lineage.domains.index(sums.domain)])
    expert = session.scalars(slot).one().parts_of
    if sums.expert != expert:
        problem = f"version {number} has the expert {expert} of {sums.domain!r}, not {sums.expert}"
        raise refused("expert", problem, "compare with the version's dense expert")
    layers = session.scalars(select(BodyRow.layers).where(BodyRow.digest == lineage.body)).one()
    if [len(counts) for counts in sums.routed] != [len(lineage.experts)] * layers:
        problem = f"expected counts of {layers} layers x {len(lineage.experts)} experts"
        raise refused("routed", problem, "count them with this version")
