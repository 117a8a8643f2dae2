"""The public log: a publication's entry is added in the transaction that makes it visible."""

from collections.abc import Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import BodyRow, GrantRow, LogRow, VersionRow, now
from moerge_proto.digests import Digest
from moerge_proto.grants import grant_content
from moerge_proto.messages import FileEntry
from moerge_proto.public_log import (
    LogEntry,
    LogHead,
    Published,
    body_content,
    extended,
    require_once,
    version_content,
)
from moerge_proto.version_files import HEAD_FILE


def head(session: Session) -> LogHead:
    """The unsigned head."""
    row = session.scalar(select(LogRow).order_by(LogRow.number.desc()).limit(1))
    return LogHead() if row is None else LogHead(size=row.number, hash=message(LogEntry, row).hash)


def record(session: Session, kind: Published, name: str, digest: Digest) -> None:
    """Adds an entry. Writing transactions run one at a time, so two replicas can't both add the next number."""
    last = head(session)
    entry = LogRow(number=last.size + 1, kind=kind, name=name, digest=digest, created=now(session), previous=last.hash)
    session.add(entry)
    session.flush()


def record_version(session: Session, name: str, files: Sequence[FileEntry]) -> None:
    """Records a version, after its head unless an earlier version has it."""
    digest = _head_of(files)
    if session.scalar(select(LogRow.number).where(LogRow.kind == "head", LogRow.digest == digest)) is None:
        record(session, "head", name, digest)
    record(session, "version", name, version_content(files))


def _head_of(files: Sequence[FileEntry]) -> Digest:
    [digest] = [file.sha256 for file in files if file.name == HEAD_FILE]
    return digest


def deviations(session: Session) -> Iterator[tuple[str, Digest]]:
    """Differences of the log from rows of bodies, versions and grants, with the digest that the log has or lacks."""
    entries = [message(LogEntry, row) for row in session.scalars(select(LogRow).order_by(LogRow.number))]
    try:
        extended(LogHead(), entries)
        require_once(entries)
    except ValueError as error:
        yield str(error), entries[-1].hash
    expected: dict[tuple[str, str], Digest] = {}
    heads: dict[Digest, str] = {}  # name of the first version with it
    for body in session.scalars(select(BodyRow)):
        expected["body", body.digest] = body_content(body)
    order = {entry.name: entry.number for entry in entries if entry.kind == "version"}
    for version in sorted(session.scalars(select(VersionRow)), key=lambda row: (order.get(row.name, 0), row.number)):
        expected["version", version.name] = version_content(version.files)
        heads.setdefault(_head_of(version.files), version.name)
    expected |= {("head", name): digest for digest, name in heads.items()}
    expected |= {("grant", str(row.number)): grant_content(row) for row in session.scalars(select(GrantRow))}
    logged: dict[tuple[str, str], Digest] = {(entry.kind, entry.name): entry.digest for entry in entries}
    for what in sorted(what for what in expected.keys() | logged.keys() if expected.get(what) != logged.get(what)):
        yield " ".join(what), logged.get(what) or expected[what]
