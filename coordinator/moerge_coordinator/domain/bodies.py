"""Bodies: the lineage of a requested body, successors of retired bodies, and the current body."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.trunk.merge import MergedBody
from moerge.trunk.methods.method import Method
from moerge.trunk.methods.registry import METHODS, SOLVED, require_options
from moerge_coordinator.domain import public_log, rounds
from moerge_coordinator.domain.withdrawal import require_usable
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.messages import body_lineage, message
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, ExpertRow, tell
from moerge_proto.bodies import BodyLineage, BodyOptions, NewBody
from moerge_proto.experts import ExpertState
from moerge_proto.messages import UNKNOWN
from moerge_proto.options import PAPER, RECOMMENDED
from moerge_proto.problems import ProblemType
from moerge_proto.public_log import body_content


def find(session: Session, digest: str | None) -> BodyRow:
    """The body of that digest, by default the current one."""
    row = session.scalar(select(BodyRow).where(BodyRow.digest == digest if digest else BodyRow.current))
    todo = "run: moerge body list" if digest else "the operator makes it: moerge coordinator seed, or moerge body merge"
    return existing(row, f"body {digest or 'yet'}", "body", todo)


def lineage_of(session: Session, new: NewBody) -> BodyLineage:
    """The lineage of the requested body: the registered seed's, or from the present experts and body contributions."""
    if new.method is not None and METHODS[new.method].is_seed:
        return _seed_lineage(session, new)
    named = None if new.method is None else _checked(METHODS[new.method], new)
    contributions = _body_contributions(session)
    ended = None if new.round is None else rounds.ended(session, new.round, "body")
    ready = _ready(session, new)
    experts = new.experts or [digest for digest in ready if digest != new.options.base]
    if ended is not None:
        experts = [digest for digest in experts if ready[digest] in ended.contributed]
    _require_ready(experts, ready)
    complete = ended is not None or contributions.keys() >= set(experts)
    method = named or METHODS[RECOMMENDED.body if complete else PAPER.body]
    if method.solved:
        _require_contributions(experts, ready, contributions)
    if new.options.weights:
        _require_weights(new.options, [ready[digest] for digest in experts])
    return _lineage(method, new.options, experts, contributions)


def _seed_lineage(session: Session, new: NewBody) -> BodyLineage:
    """The lineage of a registered seed's body."""
    require_options(METHODS["seed"], new.options)
    for name in ("experts", "round"):
        if getattr(new, name) is not None:
            problem = "a seed's body is not merged"
            raise RefusedError(ProblemType.INVALID_REQUEST, problem, where=name, todo=f"leave {name} out")
    row = session.scalar(select(BodyRow).where(BodyRow.method == new.method).limit(1))
    if row is None:
        todo = "register one on the coordinator's machine: moerge coordinator seed HOME MODEL"
        raise RefusedError(ProblemType.NOT_READY, "no seed is registered", where="method", todo=todo)
    return body_lineage(row)


def _ready(session: Session, new: NewBody) -> dict[str, str]:
    """Ready whole expert, in order of arrival -> its domain, after a check of base and experts."""
    query = select(ExpertRow).where(ExpertRow.state == ExpertState.READY).order_by(ExpertRow.number)
    rows, base = list(session.scalars(query)), new.options.base
    parts = {row.digest: row.dense for row in rows if row.parts_body is not None}
    _require_whole(parts, "options.base", [] if base is None else [base])
    _require_whole(parts, "experts", new.experts or [])
    ready = {row.digest: row.domain for row in rows if row.parts_body is None}
    if base is not None and base not in ready:
        raise _not_ready(base, "options.base")
    return ready


def _body_contributions(session: Session) -> dict[str, str]:
    """Expert -> its active body contribution."""
    rows = session.scalars(select(ContributionRow).where(ContributionRow.active, ContributionRow.kind == "body"))
    return {row.expert: row.digest for row in rows}


def _lineage(method: Method, options: BodyOptions, experts: list[str], contributions: Mapping[str, str]) -> BodyLineage:
    return BodyLineage(
        method=method.name,
        options=options,
        experts=experts,
        contributions=[contributions[expert] for expert in experts] if method.solved else [],
        revision=method.revision,
    )


def _checked(method: Method, new: NewBody) -> Method:
    """The method, after a check of its options; only solved methods allow a round."""
    require_options(method, new.options)
    if new.round is not None and not method.solved:
        problem = f"the method {method.name!r} does not use a round"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="round", todo=f"choose one of {SOLVED}")
    return method


def _require_whole(parts: Mapping[str, str], where: str, experts: Sequence[str]) -> None:
    """Requires that no expert is in `parts`: digest -> its dense expert."""
    for digest in experts:
        if digest in parts:
            problem = f"expert {digest} has only parts, so it can't be merged"
            todo = f"register its dense expert, {parts[digest]}, and name that one"
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
        problem = f"no body contribution of {', '.join(missing)}"
        todo = "ask their owners to set `body_contribution`, or use another method"
        raise RefusedError(ProblemType.NOT_READY, problem, where="method", todo=todo)


def _require_weights(options: BodyOptions, domains: list[str]) -> None:
    if unknown := sorted(options.weights.keys() - set(domains)):
        problem = f"{', '.join(unknown)}; the body's domains are {', '.join(domains)}"
        todo = "name domains of the body"
    elif not any(options.weights.get(domain, 1.0) for domain in domains):
        problem, todo = "every weight is zero", "give one above zero"
    else:
        return
    raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="options.weights", todo=todo)


def remerge(session: Session, newcomer: str | None = None) -> BodyLineage | None:
    """The lineage of the current body's successor: the same without withdrawn inputs, and with a newcomer.

    None if there is no body or it is a seed's, if it is not retired and there is no newcomer, or if no expert is left.
    """
    row = session.scalar(select(BodyRow).where(BodyRow.current))
    if row is None or not row.experts or (newcomer is None and row.retired is None):
        return None
    made = body_lineage(row)
    method = METHODS[made.method]
    rows = session.scalars(select(ExpertRow).where(ExpertRow.state == ExpertState.READY))
    ready = {item.digest: item.domain for item in rows}
    if made.options.base is not None and made.options.base not in ready:
        return None
    contributions = _body_contributions(session)
    experts = list(dict.fromkeys([*made.experts, *([newcomer] if newcomer else [])]))
    experts = [expert for expert in experts if expert in ready and (not method.solved or expert in contributions)]
    weights = {name: weight for name, weight in made.options.weights.items() if name in map(ready.get, experts)}
    if not experts or (weights.keys() >= {ready[expert] for expert in experts} and not any(weights.values())):
        return None
    return _lineage(method, made.options.model_copy(update={"weights": weights}), experts, contributions)


def known(session: Session, blobs: Blobs, lineage: BodyLineage) -> MergedBody | None:
    """The body of that lineage that was last current, if merged or registered, with its files still present.

    All seeds have the same lineage.
    """
    for row in session.scalars(select(BodyRow).order_by(BodyRow.turn.desc())):
        if body_lineage(row) == lineage and all(blobs.has(file.sha256) for file in row.files):
            return message(MergedBody, row)
    return None


def make_current(session: Session, blobs: Blobs, body: MergedBody) -> str | None:
    """Makes a body the current one; None if it must be made again because a file was removed meanwhile.

    Refused if another seed with this body is registered.
    """
    require_usable(session, [*body.experts, body.options.base], body.contributions)
    if not all(blobs.has(file.sha256) for file in body.files):
        return None
    row = session.scalar(select(BodyRow).where(BodyRow.digest == body.digest))
    if row is None:
        row = BodyRow(**dict(body), current=False, turn=0)
        session.add(row)
        public_log.record(session, "body", body.digest, body_content(body))
    elif row.seed != body.seed:
        problem, todo = f"{row.source} has the same body, with another {_differing(row, body)}", "use that seed"
        raise RefusedError(ProblemType.CONFLICT, problem, where="seed", todo=todo)
    elif body.license != UNKNOWN:
        row.license = body.license
    for other in session.scalars(select(BodyRow).where(BodyRow.current)):
        other.current = False
    row.current, row.retired, row.turn = True, None, next_turn(session)
    domains = {expert.digest: expert.domain for expert in session.scalars(select(ExpertRow))}
    names = ", ".join(domains[digest] for digest in body.experts) or body.source
    tell(session, f"body {body.digest[:12]} is current: {body.method} of {names}")
    return body.digest


def _differing(row: BodyRow, body: MergedBody) -> str:
    """The names of the files that differ between two seeds."""
    ours, theirs = ({file.name: file.sha256 for file in files} for files in (row.files, body.files))
    return ", ".join(sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)))


def next_turn(session: Session) -> int:
    """The turn of a body that becomes current now."""
    return (session.scalar(select(func.max(BodyRow.turn))) or 0) + 1
