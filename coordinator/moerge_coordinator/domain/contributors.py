"""Contributors: the contributed and missing domains of a body."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain.contribution_rules import RULES
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, ExpertRow
from moerge_proto.bodies import Contributors
from moerge_proto.experts import ExpertState
from moerge_proto.options import ANCHOR
from moerge_proto.statistics_file import Kind


def contributed(session: Session, kind: Kind, body: str | None) -> Collection[str]:
    """The domains with an active contribution of a kind that counts for that body."""
    query = select(ContributionRow.domain).where(ContributionRow.active, ContributionRow.kind == kind)
    return set(session.scalars(query.where(*RULES[kind].counted(body))))


def of_body(session: Session, body: BodyRow) -> Contributors:
    """The domains of a version on this body, if solved now, and the body's other domains, by arrival.

    A seed's body has the domains with ready parts for it. Withdrawn experts and an anchor are not missing.
    """
    come = contributed(session, "router", body.digest)
    rows = list(session.scalars(select(ExpertRow).order_by(ExpertRow.number)))
    if body.experts:
        expected = dict.fromkeys(row.domain for row in rows if row.digest in body.experts and row.withdrawn is None)
    else:
        ready = (row for row in rows if row.state is ExpertState.READY and row.parts_body == body.digest)
        expected = dict.fromkeys(row.domain for row in ready)
    return Contributors(
        body=body.digest,
        contributed=list(dict.fromkeys(row.domain for row in rows if row.domain in come)),
        missing=[domain for domain in expected if domain not in {*come, ANCHOR}],
    )
