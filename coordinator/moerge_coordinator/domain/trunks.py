"""Trunks: the lineage of a requested trunk, successors of retired trunks, and the current trunk."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.trunk.merge import MergedTrunk
from moerge.trunk.methods.method import Method
from moerge.trunk.methods.registry import METHODS, SOLVED, require_options
from moerge_coordinator.domain import rounds
from moerge_coordinator.domain.withdrawal import require_usable
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.messages import message, trunk_lineage
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow, TrunkRow, tell
from moerge_proto.experts import ExpertState
from moerge_proto.options import PAPER, RECOMMENDED
from moerge_proto.problems import ProblemType
from moerge_proto.trunks import NewTrunk, TrunkLineage, TrunkOptions


def find(session: Session, digest: str | None) -> TrunkRow:
    """The trunk of that digest, by default the current one."""
    row = session.scalar(select(TrunkRow).where(TrunkRow.digest == digest if digest else TrunkRow.current))
    todo = "run: moerge trunk list" if digest else "the operator makes it with: moerge trunk merge"
    return existing(row, f"trunk {digest or 'yet'}", "trunk", todo)


def lineage_of(session: Session, new: NewTrunk) -> TrunkLineage:
    """The lineage of the requested trunk, from the present experts and trunk contributions."""
    named = None if new.method is None else _checked(METHODS[new.method], new)
    contributions = _trunk_contributions(session)
    ended = None if new.round is None else rounds.ended(session, new.round, "trunk")
    ready = _ready(session, new)
    experts = new.experts or [digest for digest in ready if digest != new.options.base]
    if ended is not None:
        experts = [digest for digest in experts if ready[digest] in ended.contributed]
    if named is not None and named.base_only:
        experts = [str(new.options.base)]
    _require_ready(experts, ready)
    complete = ended is not None or contributions.keys() >= set(experts)
    method = named or METHODS[RECOMMENDED.method if complete else PAPER.method]
    if method.solved:
        _require_contributions(experts, ready, contributions)
    if new.options.weights:
        _require_weights(new.options, [ready[digest] for digest in experts])
    return _lineage(method, new.options, experts, contributions)


def _ready(session: Session, new: NewTrunk) -> dict[str, str]:
    """Ready expert, in order of arrival -> its domain, without fitted ones, after a check of base and experts."""
    query = select(ExpertRow).where(ExpertRow.state == ExpertState.READY).order_by(ExpertRow.number)
    rows, base = list(session.scalars(query)), new.options.base
    fitted = {row.digest: row.trained for row in rows if row.fitted_to is not None}
    _require_trained(fitted, "options.base", [] if base is None else [base])
    _require_trained(fitted, "experts", new.experts or [])
    ready = {row.digest: row.domain for row in rows if row.fitted_to is None}
    if base is not None and base not in ready:
        raise _not_ready(base, "options.base")
    return ready


def _trunk_contributions(session: Session) -> dict[str, str]:
    """Expert -> its active trunk contribution."""
    rows = session.scalars(select(ContributionRow).where(ContributionRow.active, ContributionRow.kind == "trunk"))
    return {row.expert: row.digest for row in rows}


def _lineage(
    method: Method, options: TrunkOptions, experts: list[str], contributions: Mapping[str, str]
) -> TrunkLineage:
    return TrunkLineage(
        method=method.name,
        options=options,
        experts=experts,
        contributions=[contributions[expert] for expert in experts] if method.solved else [],
        revision=method.revision,
    )


def _checked(method: Method, new: NewTrunk) -> Method:
    """The method, after a check of its options; only solved methods allow a round."""
    require_options(method, new.options)
    if new.round is not None and not method.solved:
        problem = f"the method {method.name!r} does not use a round"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="round", todo=f"choose one of {SOLVED}")
    return method


def _require_trained(fitted: Mapping[str, str], where: str, experts: Sequence[str]) -> None:
    """Requires that no expert is in `fitted`: digest -> its original expert."""
    for digest in experts:
        if digest in fitted:
            problem = f"expert {digest} is fitted to a trunk, so it can't be merged"
            todo = f"name its original expert: {fitted[digest]}"
            raise RefusedError(ProblemType.INVALID_REQUEST, problem, where=where, todo=todo)


def _require_ready(experts: Sequence[str], ready: Collection[str]) -> None:
    for digest in experts:
        if digest not in ready:
            raise _not_ready(digest, "experts")
    if not experts or len(set(experts)) < len(experts):
        raise RefusedError(ProblemType.NOT_READY, "expected at least one expert, each only once", where="experts")


def _not_ready(digest: str, where: str) -> RefusedError:
    problem, todo = f"expert {digest} is not ready", "run: moerge expert list"
    return RefusedError(ProblemType.NOT_READY, problem, where=where, todo=todo)


def _require_contributions(experts: list[str], domains: Mapping[str, str], contributions: Mapping[str, str]) -> None:
    if missing := [domains[digest] for digest in experts if digest not in contributions]:
        problem = f"no trunk contribution of {', '.join(missing)}"
        todo = "ask their owners to set `trunk_contribution`, or use another method"
        raise RefusedError(ProblemType.NOT_READY, problem, where="method", todo=todo)


def _require_weights(options: TrunkOptions, domains: list[str]) -> None:
    if unknown := sorted(options.weights.keys() - set(domains)):
        problem = f"{', '.join(unknown)}; the trunk's domains are {', '.join(domains)}"
        todo = "name domains of the trunk"
    elif not any(options.weights.get(domain, 1.0) for domain in domains):
        problem, todo = "every weight is zero", "give one above zero"
    else:
        return
    raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="options.weights", todo=todo)


def remerge(session: Session, newcomer: str | None = None) -> TrunkLineage | None:
    """The lineage of the current trunk's successor: the same without withdrawn inputs, and with a newcomer.

    None if there is no trunk, if it is not retired and there is no newcomer, or if no expert is left.
    """
    row = session.scalar(select(TrunkRow).where(TrunkRow.current))
    if row is None or (newcomer is None and row.retired is None):
        return None
    made = trunk_lineage(row)
    method = METHODS[made.method]
    rows = session.scalars(select(ExpertRow).where(ExpertRow.state == ExpertState.READY))
    ready = {item.digest: item.domain for item in rows}
    if made.options.base is not None and made.options.base not in ready:
        return None
    contributions = _trunk_contributions(session)
    experts = list(dict.fromkeys([*made.experts, *([newcomer] if newcomer and not method.base_only else [])]))
    experts = [expert for expert in experts if expert in ready and (not method.solved or expert in contributions)]
    weights = {name: weight for name, weight in made.options.weights.items() if name in map(ready.get, experts)}
    if not experts or (weights.keys() >= {ready[expert] for expert in experts} and not any(weights.values())):
        return None
    return _lineage(method, made.options.model_copy(update={"weights": weights}), experts, contributions)


def known(session: Session, blobs: Blobs, lineage: TrunkLineage) -> MergedTrunk | None:
    """The trunk of that lineage, if already merged, with its files still present."""
    for row in session.scalars(select(TrunkRow)):
        if trunk_lineage(row) == lineage and all(blobs.has(file.sha256) for file in row.files):
            return message(MergedTrunk, row)
    return None


def make_current(session: Session, blobs: Blobs, trunk: MergedTrunk) -> str | None:
    """Makes a merged trunk the current one; None if it must be merged again because a file was removed meanwhile."""
    require_usable(session, [*trunk.experts, trunk.options.base], trunk.contributions)
    if not all(blobs.has(file.sha256) for file in trunk.files):
        return None
    row = session.scalar(select(TrunkRow).where(TrunkRow.digest == trunk.digest))
    if row is None:
        row = TrunkRow(**dict(trunk), current=False)
        session.add(row)
    for other in session.scalars(select(TrunkRow).where(TrunkRow.current)):
        other.current = False
    row.current, row.retired = True, None
    domains = {expert.digest: expert.domain for expert in session.scalars(select(ExpertRow))}
    names = ", ".join(domains[digest] for digest in trunk.experts)
    tell(session, f"trunk {trunk.digest[:12]} is merged and current: {trunk.method} of {names}")
    return trunk.digest
