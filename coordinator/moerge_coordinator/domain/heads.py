"""Heads: the lineage of a version's head, from the experts' head contributions."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.bodies.head_kinds import HEADS
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow
from moerge_proto.bodies import HeadMethod
from moerge_proto.problems import ProblemType
from moerge_proto.recipes import FEDERATED, PAPER
from moerge_proto.versions import HeadLineage


def lineage_of(session: Session, asked: HeadMethod | None, experts: Sequence[str]) -> HeadLineage:
    """The lineage of the head of a version with these experts, in this order.

    Without a method, it is the seed's if every expert keeps it, the recommended one if every other one has an active
    head contribution, and otherwise the paper's.
    """
    rows = {row.digest: row for row in session.scalars(select(ExpertRow).where(ExpertRow.digest.in_(experts)))}
    own = [digest for digest in experts if rows[digest].own_head is not False]
    contributions = _contributions(session, [rows[digest] for digest in own])
    complete = contributions.keys() >= set(own)
    automatic = "seed" if not own else FEDERATED.head if complete else PAPER.head
    method = HEADS[asked or automatic]
    if method.solved and not complete:
        missing = ", ".join(rows[digest].domain for digest in own if digest not in contributions)
        todo = f"ask their owners to allow head_contributions, or use the head {PAPER.head!r}"
        raise RefusedError(ProblemType.NOT_READY, f"no head contribution of {missing}", where="head", todo=todo)
    return HeadLineage(
        method=method.name,
        contributions=[contributions[digest] for digest in own] if method.solved else [],
        revision=method.revision,
    )


def _contributions(session: Session, experts: Sequence[ExpertRow]) -> Mapping[str, str]:
    """Expert -> its active head contribution, or that of its dense expert under another body."""
    query = select(ContributionRow).where(ContributionRow.active, ContributionRow.kind == "head")
    active = list(session.scalars(query.order_by(ContributionRow.number)))
    rows = session.scalars(select(ExpertRow).where(ExpertRow.digest.in_([part.expert for part in active])))
    dense, own = {row.digest: row.parts_of for row in rows}, {part.expert: part.digest for part in active}
    of = {(part.domain, dense[part.expert]): part.digest for part in active}
    found = {row.digest: own.get(row.digest) or of.get((row.domain, row.parts_of)) for row in experts}
    return {expert: digest for expert, digest in found.items() if digest is not None}
