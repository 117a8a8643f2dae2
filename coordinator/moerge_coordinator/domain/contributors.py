"""Contributors: the contributed and missing domains of a body."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain.contribution_rules import RULES
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, ExpertRow
from moerge_proto.bodies import Contributors
from moerge_proto.statistics_file import Kind


def contributed(session: Session, kind: Kind, body: str | None) -> Collection[str]:
    """The domains with an active contribution of a kind that counts for that body."""
    query = select(ContributionRow.domain).where(ContributionRow.active, ContributionRow.kind == kind)
    return set(session.scalars(query.where(*RULES[kind].counted(body))))


def of_body(session: Session, body: BodyRow) -> Contributors:
    """The domains of a version on this body, if solved now, and the body's other domains, by arrival.

    Withdrawn experts are not missing.
    """
    come = contributed(session, "router", body.digest)
    rows = list(session.scalars(select(ExpertRow).order_by(ExpertRow.number)))
    merged = dict.fromkeys(row.domain for row in rows if row.digest in body.experts and row.withdrawn is None)
    return Contributors(
        body=body.digest,
        contributed=list(dict.fromkeys(row.domain for row in rows if row.domain in come)),
        missing=[domain for domain in merged if domain not in come],
    )
