"""Withdrawal of experts and contributions (law 5, docs/design.md)."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain.sums import contributions_in
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.references import drop_artifacts
from moerge_coordinator.storage.tables import (
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


def containing(session: Session, expert: ExpertRow) -> list[VersionRow]:
    """The unretired versions with an expert's MLPs, parts included."""
    query = select(VersionRow).where(VersionRow.retired.is_(None)).order_by(VersionRow.number)
    return [row for row in session.scalars(query) if expert.digest in row.lineage.experts]


def withdraw_expert(session: Session, row: ExpertRow, *, serve: bool) -> list[VersionRow]:
    """Withdraws an expert with its contributions. Idempotent.

    Returns the versions that still contain it; without `serve` these are withheld.
    """
    if row.state is ExpertState.REFUSED:
        raise RefusedError(ProblemType.CONFLICT, "a refused expert can't be withdrawn", where="digest")
    when = now(session)
    if row.withdrawn is None:
        row.state, row.withdrawn = ExpertState.WITHDRAWN, when
        tell(session, f"expert {row.digest[:12]} of {row.domain} is withdrawn")
        for part in session.scalars(select(ContributionRow).where(ContributionRow.expert == row.digest)):
            withdraw_contribution(session, part)
    served = containing(session, row)
    if not serve:
        for version in served:
            version.withheld = version.withheld or when
    session.flush()
    return served


def withdraw_contribution(session: Session, row: ContributionRow) -> None:
    """Excludes a contribution from later versions. Idempotent.

    A router contribution frees its shards. Published versions stay.
    """
    if row.withdrawn is None:
        tell(session, f"{row.kind} contribution {row.digest[:12]} of {row.domain} is withdrawn")
    row.active, row.withdrawn = False, row.withdrawn or now(session)
    for shard in session.scalars(select(ShardRow).where(ShardRow.contribution == row.digest)):
        session.delete(shard)
    session.flush()


def purge_expert(session: Session, row: ExpertRow) -> None:
    """Purges a withdrawn expert's files and statistics. Idempotent."""
    when = now(session)
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


def require_usable(session: Session, experts: Sequence[str], contributions: Sequence[str]) -> None:
    """Requires that none of these was withdrawn meanwhile."""
    for kind, where, digests in ((ExpertRow, "experts", experts), (ContributionRow, "contributions", contributions)):
        if gone := set(session.scalars(select(kind.digest).where(kind.withdrawn.is_not(None)))) & set(digests):
            problem = f"{min(gone)} was withdrawn meanwhile"
            raise RefusedError(ProblemType.CONFLICT, problem, where=where, todo="try again without it")


def require_inputs(session: Session, lineage: Lineage) -> None:
    """Requires that no input of a version was withdrawn meanwhile."""
    sums = [*contributions_in(session, lineage.contributions), *lineage.head.contributions]
    require_usable(session, lineage.experts, sums)
