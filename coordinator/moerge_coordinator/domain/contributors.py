"""Contributors: the contributed and missing domains under a body."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.storage.tables import BodyRow, ContributionRow, ExpertRow
from moerge_proto.bodies import Contributors
from moerge_proto.experts import ExpertState


def contributed(session: Session, body: str) -> Collection[str]:
    """The domains with an active router contribution under a body."""
    row = ContributionRow
    return set(session.scalars(select(row.domain).where(row.active, row.body == body, row.split == "statistics")))


def of_body(session: Session, body: BodyRow) -> Contributors:
    """The domains of a version on this body, if solved now, and others with a ready expert for it, by arrival."""
    come = contributed(session, body.digest)
    rows = list(session.scalars(select(ExpertRow).order_by(ExpertRow.number)))
    ready = (row for row in rows if row.state is ExpertState.READY and row.parts_body == body.digest)
    expected = dict.fromkeys(row.domain for row in ready)
    return Contributors(
        body=body.digest,
        contributed=list(dict.fromkeys(row.domain for row in rows if row.domain in come)),
        missing=[domain for domain in expected if domain not in come],
    )
