"""The coordinator's rows in memory, with a clock set by tests; experts, bodies and versions have no files."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import create_engine, event, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from moerge_coordinator.domain import owners, versions
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import Base, BodyRow, ContributionRow, DomainRow, ExpertRow, VersionRow
from moerge_proto.digests import digest_of, sha256_hex
from moerge_proto.experts import ExpertState
from moerge_proto.influence import VersionInfluence
from moerge_proto.messages import FileEntry
from moerge_proto.versions import NewVersion, VersionFile

START = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime:
        return self.time

    def later(self, **by: float) -> datetime:
        self.time += timedelta(**by)
        return self.time


def rows_in_memory(clock: Callable[[], datetime]) -> Database:
    """Empty tables with foreign keys enforced."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    event.listen(engine, "connect", lambda connection, record: connection.execute("PRAGMA foreign_keys=ON"))
    Base.metadata.create_all(engine)
    return Database(engine, clock)


def file_of(content: str, name: str = "model.safetensors") -> FileEntry:
    """A file whose digest is that of these words."""
    return FileEntry(name=name, sha256=sha256_hex(content.encode()), size=len(content))


def add_expert(session: Session, domain: str, body: BodyRow | None = None, **change: Any) -> ExpertRow:
    """A ready expert of a domain and its owner, with fitted MLPs and a head for a body, by default the current one."""
    body = body or session.scalar(select(BodyRow).where(BodyRow.current)) or add_body(session)
    if (row_of_domain := session.get(DomainRow, domain)) is None:
        owners.add(session, f"{domain}-owner", [domain])
    owner = f"{domain}-owner" if row_of_domain is None else row_of_domain.owner
    row = ExpertRow(
        digest=sha256_hex(f"{domain} {body.digest} {change.get('files')}".encode()),
        domain=domain,
        owner=owner,
        license="unknown",
        family="llama",
        state=ExpertState.READY,
        files=[file_of(f"weights of {domain} {body.digest}")],
        parts_of=dense_of(domain),
        parts_body=body.digest,
        fitted=True,
        own_head=True,
    )
    for field, value in change.items():
        setattr(row, field, value)
    session.add(row)
    session.flush()
    return row


def dense_of(domain: str) -> str:
    """The digest of a domain's dense expert."""
    return sha256_hex(f"dense expert of {domain}".encode())


def add_body(session: Session, name: str = "seed", **change: Any) -> BodyRow:
    """The current body, of the seed of that name; added once."""
    for other in session.scalars(select(BodyRow).where(BodyRow.current)):
        other.current = False
    digest = sha256_hex(f"body of {name} {change}".encode())
    if (there := session.scalar(select(BodyRow).where(BodyRow.digest == digest))) is not None:
        there.current = True
        return there
    row = BodyRow(
        digest=digest,
        family="llama",
        hidden_size=8,
        layers=2,
        config={},
        exponents=[1, 1],
        bounds=[1.0, 1.0],
        tensors=3,
        files=[file_of(name, "body.safetensors")],
        source=name,
        license="unknown",
        seed=sha256_hex(name.encode()),
        model=sha256_hex(f"model of {name}".encode()),
        current=True,
    )
    for field, value in change.items():
        setattr(row, field, value)
    session.add(row)
    session.flush()
    return row


def add_contribution(session: Session, expert: ExpertRow, body: BodyRow | None, **change: Any) -> ContributionRow:
    """An active router contribution under a body; without one, a head contribution."""
    row = ContributionRow(
        digest=sha256_hex(f"{expert.digest} {body and body.digest} {change}".encode()),
        kind="router" if body else "head",
        split="statistics" if body else None,
        owner=expert.owner,
        domain=expert.domain,
        expert=expert.digest,
        body=body and body.digest,
        tokens=100,
        documents=10,
        shards=1 if body else None,
        size=1000,
        active=True,
        warnings=[],
        software={},
    )
    for field, value in change.items():
        setattr(row, field, value)
    session.add(row)
    session.flush()
    return row


def add_version(session: Session, **new: Any) -> VersionRow:
    """The version that a solve would publish now, also a partial one; its only file is named by its lineage."""
    lineage = versions.lineage_of(session, NewVersion.model_validate({"partial": True, **new}))
    number = versions.next_number(session)
    name = digest_of(lineage.model_dump(mode="json"))
    row = VersionRow(
        number=number,
        lineage_digest=name,
        lineage=lineage,
        files=[VersionFile(name="model-router.safetensors", sha256=name, size=1, new=True)],
        bytes_total=1,
        bytes_written=1,
        signature=FileEntry(name="model.sig", sha256=sha256_hex(name.encode()), size=1),
        provenance=FileEntry(name="provenance.sigstore.json", sha256=sha256_hex(b"provenance"), size=1),
        key="0" * 64,
        release="0",
        influence=VersionInfluence(layers=[0], domains=[], warnings=[]),
    )
    session.add(row)
    session.flush()
    return row
