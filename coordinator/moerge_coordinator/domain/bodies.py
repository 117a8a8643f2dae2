"""Bodies: those of registered seeds, and the current one."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.bodies.merge import MergedBody
from moerge_coordinator.domain import public_log
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.tables import BodyRow, tell
from moerge_proto.messages import UNKNOWN
from moerge_proto.problems import ProblemType
from moerge_proto.public_log import body_content


def find(session: Session, digest: str | None) -> BodyRow:
    """The body of that digest, by default the current one."""
    row = session.scalar(select(BodyRow).where(BodyRow.digest == digest if digest else BodyRow.current))
    todo = "run: moerge body" if digest else "the operator registers a seed: moerge coordinator seed"
    return existing(row, f"body {digest or 'yet'}", "body", todo)


def make_current(session: Session, blobs: Blobs, body: MergedBody) -> str | None:
    """Makes a seed's body the current one; None if it must be made again because a file was removed meanwhile.

    Refused if another seed with this body is registered.
    """
    if not all(blobs.has(file.sha256) for file in body.files):
        return None
    row = session.scalar(select(BodyRow).where(BodyRow.digest == body.digest))
    if row is None:
        columns = {name: value for name, value in body if hasattr(BodyRow, name)}
        row = BodyRow(**columns, current=False)
        session.add(row)
        public_log.record(session, "body", body.digest, body_content(body))
    elif row.seed != body.seed:
        problem, todo = f"{row.source} has the same body, with another {_differing(row, body)}", "use that seed"
        raise RefusedError(ProblemType.CONFLICT, problem, where="seed", todo=todo)
    elif body.license != UNKNOWN:
        row.license = body.license
    for other in session.scalars(select(BodyRow).where(BodyRow.current)):
        other.current = False
    row.current = True
    tell(session, f"body {body.digest[:12]} is current: that of {body.source}")
    return body.digest


def _differing(row: BodyRow, body: MergedBody) -> str:
    """The names of the files that differ between two seeds."""
    ours, theirs = ({file.name: file.sha256 for file in files} for files in (row.files, body.files))
    return ", ".join(sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)))
