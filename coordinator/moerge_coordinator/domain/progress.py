"""The last reported progress of owners' workers."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import ProgressRow, notify, now
from moerge_proto.progress import DomainProgress, Obstacle, Progress


def tell(session: Session, owner: str, new: Progress) -> DomainProgress:
    """Stores the progress of a domain's worker; replaces the earlier report."""
    row = session.scalar(select(ProgressRow).where(ProgressRow.domain == new.domain))
    if row is None:
        row = ProgressRow(domain=new.domain, owner=owner)
        session.add(row)
    begins = new.obstacle is Obstacle.ASKS_OWNER and row.obstacle is not Obstacle.ASKS_OWNER
    for name, value in dict(new).items():
        setattr(row, name, value)
    row.heard = now(session)
    session.flush()
    if begins:
        notify(session, "owner.waits", progress=row.number)
    return message(DomainProgress, row)
