"""Benchmarks: results of public tasks that operators and owners report of versions."""

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import versions
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import BenchmarkRow, ExpertRow, VersionRow, tell
from moerge_proto.benchmarks import MAX_RESULTS, Benchmark, NewBenchmarks
from moerge_proto.experts import ExpertState
from moerge_proto.problems import ProblemType

MOST_ROWS = 10 * MAX_RESULTS
"""Results of a version that a reporter may send, replaced ones included."""


def report(session: Session, owner: str | None, number: int, new: NewBenchmarks) -> list[Benchmark]:
    """Accepts results of a served version. Idempotent.

    Each replaces the earlier one of the same reporter, task and metric. `owner`: None for an operator; an owner needs a
    ready expert in the version.
    """
    version = versions.find(session, number)
    own = select(BenchmarkRow).where(BenchmarkRow.version == number, BenchmarkRow.owner == owner)
    if known := list(session.scalars(own.where(BenchmarkRow.digest == new.digest).order_by(BenchmarkRow.number))):
        return [message(Benchmark, row) for row in known]
    versions.find_served(session, number)
    _require_of(session, version, owner, new)
    _require_room(session, own, new)
    names = {(result.task, result.metric) for result in new.results}
    for earlier in session.scalars(own.where(BenchmarkRow.active)):
        if (earlier.result.task, earlier.result.metric) in names:
            earlier.active = False
    rows = [
        BenchmarkRow(version=number, owner=owner, digest=new.digest, active=True, result=result)
        for result in new.results
    ]
    session.add_all(rows)
    session.flush()
    tell(session, f"{len(rows)} benchmark results of version {number} have arrived from {owner or 'an operator'}")
    return [message(Benchmark, row) for row in rows]


def visible(number: int, owner: str | None, *, replaced: bool = False) -> Select[BenchmarkRow]:
    """The active results of a version, with `replaced` all; for an owner, the operators' and its own."""
    query = select(BenchmarkRow).where(BenchmarkRow.version == number)
    if owner is not None:
        query = query.where(or_(BenchmarkRow.owner.is_(None), BenchmarkRow.owner == owner))
    return query if replaced else query.where(BenchmarkRow.active)


def active(session: Session, number: int, owner: str | None = None) -> list[Benchmark]:
    """The active results of a version, oldest first, that the owner may see; for None all."""
    return [message(Benchmark, row) for row in session.scalars(visible(number, owner).order_by(BenchmarkRow.number))]


def _require_of(session: Session, version: VersionRow, owner: str | None, new: NewBenchmarks) -> None:
    """Requires that the results are of this version, and that an owner has a ready expert in it."""
    if new.number != version.number:
        problem = f"results of version {new.number}, sent to {version.number}"
        todo = f"send them for version {new.number}"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="number", todo=todo)
    if owner is None:
        return
    own = select(ExpertRow.digest).where(ExpertRow.owner == owner, ExpertRow.state == ExpertState.READY)
    if not set(session.scalars(own)) & set(version.lineage.experts):
        problem = f"version {version.number} has no ready expert of yours"
        todo = "report results of a version with your expert, or ask an operator to report them"
        raise RefusedError(ProblemType.FORBIDDEN, problem, where="number", todo=todo)


def _require_room(session: Session, own: Select[BenchmarkRow], new: NewBenchmarks) -> None:
    there = session.scalar(own.with_only_columns(func.count())) or 0
    if there + len(new.results) > MOST_ROWS:
        problem = f"you have reported {there:,} results of version {new.number}; at most {MOST_ROWS:,} are kept"
        raise RefusedError(ProblemType.OVER_QUOTA, problem, where="results", todo="report results of a later version")
