"""The coordinator's tables. JSON columns load as messages, enum columns as members, times as UTC."""

import secrets
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import JsonValue, TypeAdapter
from sqlalchemy import JSON, BigInteger, DateTime, ForeignKey, Index, String, UniqueConstraint, event, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, object_session
from sqlalchemy.types import TypeDecorator

from moerge_coordinator.settings import Event
from moerge_proto.composed import Segment
from moerge_proto.contributions import Kind
from moerge_proto.evaluations import Score
from moerge_proto.experts import ExpertState, NewAdapter, Parts
from moerge_proto.influence import VersionInfluence
from moerge_proto.masks import Seals
from moerge_proto.messages import FileEntry
from moerge_proto.owners import Role
from moerge_proto.problems import Problem
from moerge_proto.progress import Obstacle, Stage
from moerge_proto.public_log import Published
from moerge_proto.statistics_file import Split
from moerge_proto.uploads import NewUpload
from moerge_proto.usage import ExpertShares
from moerge_proto.version_keys import KeyRotation
from moerge_proto.version_names import version_name
from moerge_proto.versions import Lineage, PublicLoss, VersionFile

T = TypeVar("T")
W = TypeVar("W", bound=StrEnum)


class _Utc(TypeDecorator[datetime]):
    """Times as UTC, even on databases without time zones."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: object) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: object) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class _Json(TypeDecorator[T], Generic[T]):
    """Values of type `kind` as JSON."""

    impl = JSON
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__(none_as_null=True)
        self.kind = kind
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)

    def process_bind_param(self, value: T | None, dialect: object) -> Any:
        return None if value is None else self._adapter.dump_python(value, mode="json")

    def process_result_value(self, value: Any, dialect: object) -> T | None:
        return None if value is None else self._adapter.validate_python(value)


class _Word(TypeDecorator[W], Generic[W]):
    """An enum's members as their values."""

    impl = String(16)
    cache_ok = True

    def __init__(self, kind: type[W]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: W | None, dialect: object) -> str | None:
        return None if value is None else self.kind(value).value

    def process_result_value(self, value: str | None, dialect: object) -> W | None:
        return None if value is None else self.kind(value)


_KINDS: tuple[Any, ...] = (
    NewAdapter,
    dict[str, str],
    dict[str, JsonValue],
    list[str],
    list[int],
    list[float],
    FileEntry,
    list[FileEntry],
    list[Segment],
    list[VersionFile],
    Lineage,
    NewUpload,
    Problem,
    VersionInfluence,
    PublicLoss,
    KeyRotation,
    Seals,
    ExpertShares,
)
_COLUMNS: dict[Any, Any] = {
    datetime: _Utc,
    **{word: _Word(word) for word in (ExpertState, Obstacle, Role, Stage)},
    **{kind: _Json(kind) for kind in _KINDS},
}


class Base(DeclarativeBase):
    type_annotation_map = _COLUMNS


def now(session: Session) -> datetime:
    """The time of the database's clock."""
    moment: datetime = session.info["clock"]()
    return moment


def tell(session: Session, event: str) -> None:
    """Adds a line to the coordinator's log after the transaction's commit."""
    session.info.setdefault("events", []).append(event)


def notify(session: Session, event: Event, /, *, name: str = "", **ids: JsonValue) -> None:
    """Adds a notice of this transaction's event to the outbox, if the webhook of the settings wants it.

    `name`: its id, by default a random one; a known one adds nothing. Payloads have no more than `ids`.
    """
    if event in session.info.get("notices", ()):
        name = name or f"msg_{secrets.token_hex(12)}"
        if session.scalar(select(NoticeRow).where(NoticeRow.name == name)) is None:
            session.add(NoticeRow(name=name, event=event, data=ids, attempts=0, due=now(session)))


@event.listens_for(Base, "before_insert", propagate=True)
def _dated(mapper: Any, connection: object, row: Any) -> None:
    """Sets a missing time of creation to now."""
    session = object_session(row)
    if session is not None and "created" in mapper.columns and row.created is None:
        row.created = now(session)


def _unique_where(name: str, *columns: str, where: str) -> Index:
    """A unique index of the rows that meet a condition."""
    return Index(name, *columns, unique=True, sqlite_where=text(where), postgresql_where=text(where))


class _Numbered(Base):
    """A table whose rows are numbered in order of arrival."""

    __abstract__ = True
    number: Mapped[int] = mapped_column(primary_key=True)


class OwnerRow(_Numbered):
    __tablename__ = "owners"
    name: Mapped[str] = mapped_column(String(63), unique=True)
    created: Mapped[datetime]
    adapter_refused: Mapped[datetime | None]  # last, for another digest


class KeyRow(_Numbered):
    """An owner's Ed25519 key. Each owner has at most one unrevoked key; revoked keys are never reused."""

    __tablename__ = "owner_keys"
    __table_args__ = (_unique_where("one_key_of_an_owner", "owner", where="revoked IS NULL"),)
    owner: Mapped[str] = mapped_column(ForeignKey("owners.name"))
    public_key: Mapped[str] = mapped_column(String(64), unique=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    created: Mapped[datetime]
    revoked: Mapped[datetime | None]


class DomainRow(Base):
    __tablename__ = "domains"
    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    owner: Mapped[str] = mapped_column(ForeignKey("owners.name"))


class TokenRow(Base):
    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[Role]
    owner: Mapped[str | None] = mapped_column(ForeignKey("owners.name"))
    name: Mapped[str | None] = mapped_column(String(63))
    groups: Mapped[list[str]] = mapped_column(default=list)
    note: Mapped[str] = mapped_column(String(200), default="")
    created: Mapped[datetime]
    expires: Mapped[datetime | None]
    revoked: Mapped[datetime | None]
    used: Mapped[datetime | None]  # last, to a minute


class UploadRow(Base):
    __tablename__ = "uploads"
    __table_args__ = (
        UniqueConstraint("owner", "manifest"),
        Index("uploads_of_a_file", "owner", "sha256"),
        Index("sizes_of_uploads", "owner", "size"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(ForeignKey("owners.name"))
    manifest: Mapped[str] = mapped_column(String(64))  # digest of `request`
    request: Mapped[NewUpload]
    sha256: Mapped[str] = mapped_column(String(64))  # of the whole file
    size: Mapped[int] = mapped_column(BigInteger, default=0)  # of all chunks, as sent
    created: Mapped[datetime]
    touched: Mapped[datetime]


class HoldingRow(Base):
    """An owner's complete uploaded file."""

    __tablename__ = "holdings"
    __table_args__ = (Index("sizes_of_holdings", "owner", "size"),)
    owner: Mapped[str] = mapped_column(ForeignKey("owners.name"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)


class ExpertRow(_Numbered):
    """An expert. Of those that are not withdrawn, each domain has at most one for each body."""

    __tablename__ = "experts"
    __table_args__ = (_unique_where("one_expert_of_a_domain", "domain", "parts_body", where="withdrawn IS NULL"),)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    domain: Mapped[str] = mapped_column(ForeignKey("domains.name"))
    owner: Mapped[str] = mapped_column(ForeignKey("owners.name"))
    license: Mapped[str] = mapped_column(String(64))
    redistribute: Mapped[bool] = mapped_column(default=False)
    family: Mapped[str] = mapped_column(String(32))
    state: Mapped[ExpertState]
    problem: Mapped[Problem | None]
    files: Mapped[list[FileEntry]]
    adapter: Mapped[NewAdapter | None]
    parts_of: Mapped[str] = mapped_column(String(64))  # the dense expert's digest
    parts_body: Mapped[str] = mapped_column(String(64))
    fitted: Mapped[bool]
    own_head: Mapped[bool]
    signature: Mapped[str | None] = mapped_column(String(128))
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    created: Mapped[datetime]
    withdrawn: Mapped[datetime | None]
    purged: Mapped[datetime | None]

    @property
    def parts(self) -> Parts:
        return Parts(expert=self.parts_of, body=self.parts_body, fitted=self.fitted, own_head=self.own_head)


class BodyRow(_Numbered):
    """The body of a registered seed, as `MergedBody`."""

    __tablename__ = "bodies"
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    family: Mapped[str] = mapped_column(String(32))
    hidden_size: Mapped[int]
    layers: Mapped[int]
    config: Mapped[dict[str, JsonValue]]
    exponents: Mapped[list[int]]
    bounds: Mapped[list[float]]
    tensors: Mapped[int]
    files: Mapped[list[FileEntry]]
    source: Mapped[str | None] = mapped_column(String(1000))
    license: Mapped[str] = mapped_column(String(64))
    seed: Mapped[str] = mapped_column(String(64))
    model: Mapped[str] = mapped_column(String(64))
    current: Mapped[bool]
    created: Mapped[datetime]


class CohortRow(_Numbered):
    """Contributions that count together, as one file, or not at all.

    `sum`: the digest of that file; None until it is known.
    """

    __tablename__ = "cohorts"
    body: Mapped[str] = mapped_column(ForeignKey("bodies.digest"))
    sum: Mapped[str | None] = mapped_column(String(64), unique=True)
    created: Mapped[datetime]


class ContributionRow(_Numbered):
    """A contribution of any kind. Each expert has at most one active head contribution.

    Only router contributions have `split`, `body` and `shards`. Those that don't count `alone` count in a `cohort`.
    """

    __tablename__ = "contributions"
    __table_args__ = (_unique_where("one_of_a_kind", "expert", "kind", where="kind <> 'router' AND active"),)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    kind: Mapped[Kind] = mapped_column(String(16))
    split: Mapped[Split | None] = mapped_column(String(16))
    owner: Mapped[str] = mapped_column(ForeignKey("owners.name"))
    domain: Mapped[str] = mapped_column(ForeignKey("domains.name"))
    expert: Mapped[str] = mapped_column(ForeignKey("experts.digest"))
    body: Mapped[str | None] = mapped_column(ForeignKey("bodies.digest"))
    tokens: Mapped[int] = mapped_column(BigInteger)
    documents: Mapped[int] = mapped_column(BigInteger)
    shards: Mapped[int | None]
    effective_rank: Mapped[float | None]
    alone: Mapped[bool] = mapped_column(default=True)
    cohort: Mapped[int | None] = mapped_column(ForeignKey("cohorts.number"))
    size: Mapped[int] = mapped_column(BigInteger)
    active: Mapped[bool]
    warnings: Mapped[list[str]]
    software: Mapped[dict[str, str]]
    signature: Mapped[str | None] = mapped_column(String(128))
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    created: Mapped[datetime]
    withdrawn: Mapped[datetime | None]
    purged: Mapped[datetime | None]


class SealsRow(Base):
    """The seals of a masked contribution."""

    __tablename__ = "seals"
    contribution: Mapped[str] = mapped_column(ForeignKey("contributions.digest"), primary_key=True)
    seals: Mapped[Seals]


class ShardRow(Base):
    """A shard of a domain, which counts once under one body (law 4)."""

    __tablename__ = "shards"
    body: Mapped[str] = mapped_column(ForeignKey("bodies.digest"), primary_key=True)
    domain: Mapped[str] = mapped_column(ForeignKey("domains.name"), primary_key=True)
    shard: Mapped[str] = mapped_column(String(64), primary_key=True)
    contribution: Mapped[str] = mapped_column(ForeignKey("contributions.digest"))


PARTS = 2**30
"""The rows of parts are numbered from here, so that versions are numbered 1, 2, 3, …"""


class VersionRow(_Numbered):
    """A version; or, with `part_of`, a part of that version, whose set of experts `part` names."""

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("part_of", "part"),)
    part_of: Mapped[int | None] = mapped_column(ForeignKey("versions.number"))
    part: Mapped[str | None] = mapped_column(String(16))
    lineage_digest: Mapped[str] = mapped_column(String(64), unique=True)
    lineage: Mapped[Lineage]
    files: Mapped[list[VersionFile]]
    bytes_total: Mapped[int] = mapped_column(BigInteger)
    bytes_written: Mapped[int] = mapped_column(BigInteger)
    release: Mapped[str] = mapped_column(String(64))  # of moerge, which published it
    commit: Mapped[str | None] = mapped_column(String(64))  # likewise
    signature: Mapped[FileEntry | None]  # model.sig
    key: Mapped[str | None] = mapped_column(String(64))  # fingerprint of the key that signed it
    provenance: Mapped[FileEntry | None]  # provenance.sigstore.json, by the same key
    card: Mapped[FileEntry | None]  # that the signature covers, if it was made after the publication
    influence: Mapped[VersionInfluence] = mapped_column(deferred=True)  # D^2 figures, not needed in lists
    public_loss: Mapped[PublicLoss | None]
    note: Mapped[str] = mapped_column(String(2000), default="")
    tags: Mapped[list[str]] = mapped_column(default=list)
    created: Mapped[datetime]
    withheld: Mapped[datetime | None]
    retired: Mapped[datetime | None]

    @property
    def whole(self) -> int:
        """The number of the version, or of that which it is a part of."""
        return self.number if self.part_of is None else self.part_of

    @property
    def name(self) -> str:
        return version_name(self.whole, self.part)

    @property
    def attestations(self) -> list[FileEntry]:
        """The signed statements about its files, and the card that they cover, if that isn't the published one."""
        return [file for file in (self.signature, self.provenance, self.card) if file is not None]


class VersionKeyRow(_Numbered):
    """A key that signs or signed versions. `rotation`: how it replaced the one before, if that key signed it."""

    __tablename__ = "version_keys"
    public_key: Mapped[str] = mapped_column(String(1000), unique=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    rotation: Mapped[KeyRotation | None]
    created: Mapped[datetime]
    revoked: Mapped[datetime | None]


class EvaluationRow(_Numbered):
    """A score of a version; `owner`: None if an operator reported it. `digest`: of the whole report.

    Each version, reporter and `name` of a score has at most one active row.
    """

    __tablename__ = "evaluations"
    version: Mapped[int] = mapped_column(ForeignKey("versions.number"), index=True)
    owner: Mapped[str | None] = mapped_column(ForeignKey("owners.name"))
    digest: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(203))
    active: Mapped[bool]
    score: Mapped[Any] = mapped_column(_Json(Score))
    created: Mapped[datetime]


class AliasRow(_Numbered):
    __tablename__ = "aliases"
    name: Mapped[str] = mapped_column(String(63), unique=True)
    version: Mapped[int] = mapped_column(ForeignKey("versions.number"))
    moved: Mapped[datetime]


class AliasMoveRow(_Numbered):
    """A move of an alias, oldest first. `version` is None if the alias was removed."""

    __tablename__ = "alias_moves"
    alias: Mapped[str] = mapped_column(String(63))
    version: Mapped[int | None]
    previous: Mapped[int | None]
    kind: Mapped[str] = mapped_column(String(16))  # promote, rollback or remove
    who: Mapped[str] = mapped_column(String(100))
    note: Mapped[str] = mapped_column(String(2000), default="")
    override: Mapped[str | None] = mapped_column(String(2000))
    created: Mapped[datetime]


class ProgressRow(_Numbered):
    """The last reported progress of a domain's worker."""

    __tablename__ = "progress"
    domain: Mapped[str] = mapped_column(ForeignKey("domains.name"), unique=True)
    owner: Mapped[str] = mapped_column(ForeignKey("owners.name"))
    stage: Mapped[Stage]
    shards_done: Mapped[int] = mapped_column(BigInteger)
    shards_total: Mapped[int] = mapped_column(BigInteger)
    tokens_per_second: Mapped[int] = mapped_column(BigInteger)
    seconds_left: Mapped[int | None] = mapped_column(BigInteger)
    obstacle: Mapped[Obstacle | None]
    heard: Mapped[datetime]


class AuditRow(_Numbered):
    """One mutating call; the database refuses to change it, or to remove it within 30 days."""

    __tablename__ = "audit"
    request: Mapped[str] = mapped_column(String(64))  # the request's id
    token: Mapped[int | None]
    role: Mapped[Role | None]
    owner: Mapped[str | None] = mapped_column(String(63))
    name: Mapped[str | None] = mapped_column(String(63))
    address: Mapped[str | None] = mapped_column(String(64))
    method: Mapped[str] = mapped_column(String(16))
    path: Mapped[str] = mapped_column(String(2000))
    status: Mapped[int]
    problem: Mapped[str | None] = mapped_column(String(100))
    created: Mapped[datetime]


class LogRow(_Numbered):
    """An entry of the public log, as `LogEntry`; the database refuses to change or remove it."""

    __tablename__ = "public_log"
    __table_args__ = (UniqueConstraint("kind", "name"),)
    kind: Mapped[Published] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))
    created: Mapped[datetime]
    previous: Mapped[str] = mapped_column(String(64))


class GrantRow(_Numbered):
    """An owner's decision on a reader, as `Grant`; rows are only added."""

    __tablename__ = "grants"
    __table_args__ = (Index("grants_of_a_domain", "domain", "reader"),)
    domain: Mapped[str] = mapped_column(ForeignKey("domains.name"))
    owner: Mapped[str] = mapped_column(ForeignKey("owners.name"))
    reader: Mapped[str] = mapped_column(String(63))
    granted: Mapped[bool]
    until: Mapped[datetime | None]
    created: Mapped[datetime]


class NoticeRow(_Numbered):
    """An event that the webhook's receiver has not confirmed yet. `due`: when the next attempt is made."""

    __tablename__ = "notices"
    name: Mapped[str] = mapped_column(String(64), unique=True)
    event: Mapped[Event] = mapped_column(String(32))
    data: Mapped[dict[str, JsonValue]]
    attempts: Mapped[int]
    due: Mapped[datetime]
    created: Mapped[datetime]


class ArtifactRow(Base):
    """A derived file: `key` is the digest of its inputs, `sha256` of its content."""

    __tablename__ = "artifacts"
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger)
    maker: Mapped[str] = mapped_column(String(64))  # lineage of the first version that wrote it


class ComposedRow(Base):
    """A derived file of a version's part that isn't stored: `header`, then `segments` of the version's blobs.

    `key`: as of an artifact.
    """

    __tablename__ = "composed"
    part_of: Mapped[int] = mapped_column(ForeignKey("versions.number"), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    size: Mapped[int] = mapped_column(BigInteger)
    header: Mapped[bytes]
    segments: Mapped[list[Segment]]


class UsageRow(_Numbered):
    """An expert's shares in a consumer's requests. `reporter`: its name, or its token. `reader`: its name alone.

    Each version and reporter has the rows of its last report.
    """

    __tablename__ = "usage"
    __table_args__ = (UniqueConstraint("version", "reporter", "domain"),)
    version: Mapped[int] = mapped_column(ForeignKey("versions.number"))
    reporter: Mapped[str] = mapped_column(String(100))
    reader: Mapped[str | None] = mapped_column(String(63))
    domain: Mapped[str] = mapped_column(ForeignKey("domains.name"), index=True)
    shares: Mapped[ExpertShares]
    created: Mapped[datetime]
