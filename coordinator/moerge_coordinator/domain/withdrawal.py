"""Withdrawal of experts and contributions (law 5, docs/design.md)."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain.contribution_rules import RULES
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import contains
from moerge_coordinator.storage.references import drop_artifacts
from moerge_coordinator.storage.tables import (
    BodyRow,
    ContributionRow,
    ExpertRow,
    HoldingRow,
    ShardRow,
    VersionRow,
    now,
    tell,
)
from moerge_proto.experts import ExpertState
from moerge_proto.problems import ProblemType
from moerge_proto.versions import Lineage


def parts_from(session: Session, row: ExpertRow) -> list[ExpertRow]:
    """Its domain's experts with parts of this one, including withdrawn ones."""
    query = select(ExpertRow).where(ExpertRow.parts_of == row.digest, ExpertRow.domain == row.domain)
    return list(session.scalars(query.order_by(ExpertRow.number)))


def containing(session: Session, expert: ExpertRow) -> tuple[list[BodyRow], list[VersionRow]]:
    """The bodies and unretired versions with an expert's parameters or parts."""
    experts = {expert.digest, *(row.digest for row in parts_from(session, expert))}
    bodies = [row for row in session.scalars(select(BodyRow)) if expert.digest in contains(row)]
    names = {row.digest for row in bodies}
    query = select(VersionRow).where(VersionRow.retired.is_(None)).order_by(VersionRow.number)
    versions = [
        row
        for row in session.scalars(query)
        if not experts.isdisjoint(row.lineage.experts) or row.lineage.body in names
    ]
    return bodies, versions


def withdraw_expert(session: Session, row: ExpertRow, *, serve: bool) -> tuple[list[BodyRow], list[VersionRow]]:
    """Withdraws an expert with its contributions and its parts. Idempotent.

    Returns the retired bodies, and the versions that still contain it; without `serve` these are withheld.
    """
    if row.state is ExpertState.REFUSED:
        raise RefusedError(ProblemType.CONFLICT, "a refused expert can't be withdrawn", where="digest")
    when = now(session)
    for parts in parts_from(session, row):
        if parts.state is not ExpertState.REFUSED:
            withdraw_expert(session, parts, serve=serve)
    if row.withdrawn is None:
        row.state, row.withdrawn = ExpertState.WITHDRAWN, when
        tell(session, f"expert {row.digest[:12]} of {row.domain} is withdrawn")
        if row.parts_of is not None:
            _let_count_again(session, row)
        for part in session.scalars(select(ContributionRow).where(ContributionRow.expert == row.digest)):
            withdraw_contribution(session, part)
    bodies, versions = containing(session, row)
    for body in bodies:
        body.retired = body.retired or when
    if not serve:
        for version in versions:
            version.withheld = version.withheld or when
    session.flush()
    return bodies, versions


def _let_count_again(session: Session, parts: ExpertRow) -> None:
    """Allows repeated contributions of a dense expert that its parts' contributions had superseded."""
    query = select(ContributionRow).where(
        ContributionRow.expert == parts.parts_of, ContributionRow.body == parts.parts_body
    )
    for part in session.scalars(query.where(ContributionRow.active.is_(False))):
        part.withdrawn = part.withdrawn or now(session)


def withdraw_contribution(session: Session, row: ContributionRow) -> None:
    """Excludes a contribution from later versions and bodies. Idempotent.

    A router contribution frees its shards. Bodies solved from a body contribution are retired. Published versions stay.
    """
    when = now(session)
    if row.withdrawn is None:
        tell(session, f"{row.kind} contribution {row.digest[:12]} of {row.domain} is withdrawn")
    row.active, row.withdrawn = False, row.withdrawn or when
    for shard in session.scalars(select(ShardRow).where(ShardRow.contribution == row.digest)):
        session.delete(shard)
    RULES[row.kind].withdrawn(session, row, when)
    session.flush()


def purge_expert(session: Session, row: ExpertRow) -> list[str]:
    """Purges a withdrawn expert's files and statistics. Returns the purged digests.

    Includes its parts, and the parts for bodies that contain it, because they serve no other body.
    """
    when = now(session)
    done = [row.digest]
    if row.parts_of is None:
        bodies = {body.digest for body in containing(session, row)[0]}
        fitted = session.scalars(select(ExpertRow).where(ExpertRow.parts_body.in_(bodies)))
        for parts in dict.fromkeys([*parts_from(session, row), *fitted]):
            if parts.state is ExpertState.REFUSED:
                continue
            withdraw_expert(session, parts, serve=True)
            done += purge_expert(session, parts)
    if row.purged is None:
        tell(session, f"expert {row.digest[:12]} of {row.domain} is purged")
    row.purged = row.purged or when
    digests = {file.sha256 for file in row.files}
    for part in session.scalars(select(ContributionRow).where(ContributionRow.expert == row.digest)):
        part.purged = part.purged or when
        digests.add(part.digest)
    others = select(ExpertRow).where(ExpertRow.owner == row.owner, ExpertRow.purged.is_(None))
    kept = {file.sha256 for other in session.scalars(others) for file in other.files}
    for digest in digests - kept:
        if (holding := session.get(HoldingRow, (row.owner, digest))) is not None:
            session.delete(holding)
    session.flush()
    drop_artifacts(session)
    return done


def require_usable(session: Session, experts: Sequence[str | None], contributions: Sequence[str]) -> None:
    """Requires that none of these was withdrawn meanwhile."""
    for kind, where, digests in ((ExpertRow, "experts", experts), (ContributionRow, "contributions", contributions)):
        if gone := set(session.scalars(select(kind.digest).where(kind.withdrawn.is_not(None)))) & set(digests):
            problem = f"{min(gone)} was withdrawn meanwhile"
            raise RefusedError(ProblemType.CONFLICT, problem, where=where, todo="try again without it")


def require_inputs(session: Session, lineage: Lineage) -> None:
    """Requires that no input of a version was withdrawn meanwhile."""
    require_usable(session, lineage.experts, [*lineage.contributions, *lineage.head.contributions])


def withdrawn_in(session: Session, body: BodyRow) -> list[str]:
    """The withdrawn experts in a body."""
    gone = set(session.scalars(select(ExpertRow.digest).where(ExpertRow.withdrawn.is_not(None))))
    return [digest for digest in contains(body) if digest in gone]


def require_listed(session: Session, lineage: Lineage) -> None:
    """Requires that a lineage lists all withdrawn experts in its body."""
    body = session.scalars(select(BodyRow).where(BodyRow.digest == lineage.body)).one()
    if withdrawn_in(session, body) != lineage.withdrawn:
        problem = "an expert in the body was withdrawn meanwhile"
        raise RefusedError(ProblemType.CONFLICT, problem, where="body", todo="try again")
