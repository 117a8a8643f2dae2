"""Contributors: the contributed and missing domains of a trunk."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain.contribution_rules import RULES
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow, TrunkRow
from moerge_proto.statistics_file import Kind
from moerge_proto.trunks import Contributors


def contributed(session: Session, kind: Kind, trunk: str | None) -> Collection[str]:
    """The domains with an active contribution of a kind that counts for that trunk."""
    query = select(ContributionRow.domain).where(ContributionRow.active, ContributionRow.kind == kind)
    return set(session.scalars(query.where(*RULES[kind].counted(trunk))))


def of_trunk(session: Session, trunk: TrunkRow) -> Contributors:
    """The domains of a version on this trunk, if solved now, and the trunk's other domains, by arrival.

    Withdrawn experts are not missing.
    """
    come = contributed(session, "router", trunk.digest)
    rows = list(session.scalars(select(ExpertRow).order_by(ExpertRow.number)))
    merged = dict.fromkeys(row.domain for row in rows if row.digest in trunk.experts and row.withdrawn is None)
    return Contributors(
        trunk=trunk.digest,
        contributed=list(dict.fromkeys(row.domain for row in rows if row.domain in come)),
        missing=[domain for domain in merged if domain not in come],
    )
