"""Verification of a home: all required data is present and unaltered."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sqlalchemy import JSON, select, type_coerce
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.bodies.merge import DENSE_BODY_FILE, files_digest, seed_digest
from moerge.files import file_sha256
from moerge.models.expert_folder import expert_digest
from moerge.progress import Progress, Tracker
from moerge_coordinator.domain import public_log
from moerge_coordinator.domain.versions import lineage_digest
from moerge_coordinator.operation.findings import Finding
from moerge_coordinator.operation.recomputing import replaced_files
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.composed import digest as composed_digest
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.references import needed
from moerge_coordinator.storage.tables import (
    ArtifactRow,
    BodyRow,
    CohortRow,
    ComposedRow,
    ContributionRow,
    ExpertRow,
    HoldingRow,
    UploadRow,
    VersionRow,
)
from moerge_coordinator.storage.workflow_rows import TODO, foreign_rows
from moerge_proto.digests import canonical_json, sha256_hex
from moerge_proto.experts import ExpertState
from moerge_proto.messages import FileEntry
from moerge_proto.records import RECORD_FILE


def blob_file(digest: str) -> str:
    """The path of a blob, relative to the home and to a backup."""
    return f"blobs/{digest[:2]}/{digest}"


def _name(row: ExpertRow | BodyRow | VersionRow | ContributionRow) -> str:
    match row:
        case ExpertRow():
            return f"expert {row.digest[:12]} of {row.domain}"
        case ContributionRow():
            return f"{row.kind} contribution {row.number} of {row.domain}"
        case BodyRow():
            return f"body {row.digest[:12]}"
        case VersionRow():
            return f"version {row.name}"


def _complete_experts(session: Session) -> list[ExpertRow]:
    """Experts with required files: not refused, not purged, not still being made."""
    query = select(ExpertRow).where(ExpertRow.state != ExpertState.REFUSED, ExpertRow.purged.is_(None))
    rows = session.scalars(query.order_by(ExpertRow.number))
    return [row for row in rows if row.family]


def _versions(session: Session) -> list[VersionRow]:
    return list(session.scalars(select(VersionRow).where(VersionRow.retired.is_(None)).order_by(VersionRow.number)))


def _bodies(session: Session) -> list[BodyRow]:
    return list(session.scalars(select(BodyRow).order_by(BodyRow.number)))


def required_blobs(session: Session) -> dict[str, tuple[str, ...]]:
    """Every required blob, and its users. Blobs of purged and retired rows may be missing."""
    users: dict[str, list[str]] = defaultdict(list)
    rows: list[ExpertRow | BodyRow | VersionRow] = [*_complete_experts(session), *_bodies(session)]
    made = {(row.part_of, row.sha256): row for row in session.scalars(select(ComposedRow))}
    for row in [*rows, *_versions(session)]:
        of = row.part_of if isinstance(row, VersionRow) else None
        for file in _files(row):
            own = made.get((of, file.sha256)) if of is not None else None
            for digest in [file.sha256] if own is None else [segment.sha256 for segment in own.segments]:
                users[digest].append(f"{_name(row)} {'as' if own is None else 'in'} {file.name}")
    for part in session.scalars(select(ContributionRow).where(ContributionRow.purged.is_(None))):
        users[part.digest].append(_name(part))
    for holding in session.scalars(select(HoldingRow)):
        users[holding.sha256].append(f"owner {holding.owner}")
    for artifact in session.scalars(select(ArtifactRow)):
        users[artifact.sha256].append("a version's derived file")
    for cohort in session.scalars(select(CohortRow)):
        if cohort.sum is not None:
            users[cohort.sum].append(f"the sum of cohort {cohort.number}")
    kept = needed(session)
    return {digest: tuple(dict.fromkeys(who)) for digest, who in users.items() if digest in kept}


def folders(session: Session) -> dict[str, tuple[str, dict[str, str]]]:
    """Folder relative to the home -> its user, and file name -> digest of the required content."""
    rows = [row for row in _versions(session) if row.part is None]
    return {f"versions/{row.name}": (_name(row), {file.name: file.sha256 for file in _files(row)}) for row in rows}


def _files(row: ExpertRow | BodyRow | VersionRow) -> list[FileEntry]:
    """The files of a row, with a version's signature, its provenance and the signed card."""
    return [*row.files, *(row.attestations if isinstance(row, VersionRow) else [])]


def verify(
    settings: Settings, database: Database, blobs: Blobs, progress: Progress, *, solve: bool = False
) -> list[Finding]:
    """Checks every blob, row and folder of a home, and lists missing, altered, replaced and unused data.

    If all is whole, versions are recomputed from their lineages; see `replaced_files`. The public log is compared with
    the rows. A coordinator may serve meanwhile; its concurrent changes are not reported as damage.
    """
    result = _stored(settings, database, blobs, progress)
    if not any(item.damage for item in result):
        result += replaced_files(settings, database, blobs, progress, solve=solve)
    with database.reading() as session:
        result += _log_findings(session)
    return result


def _log_findings(session: Session) -> Iterator[Finding]:
    todo = "restore a backup: rows of publications were changed after their entry in the log, or the log was"
    for what, digest in public_log.deviations(session):
        yield Finding("altered", "the public log", digest, (what,), todo)


def _stored(settings: Settings, database: Database, blobs: Blobs, progress: Progress) -> list[Finding]:
    """The deviations of blobs, rows and folders from the digests in the database."""
    home, listed = settings.home, dict(blobs.digests())
    with database.reading() as session:
        required, places = required_blobs(session), folders(session) if blobs.lasting else {}
        result = [*_foreign_values(settings), *_altered_rows(session)]
    total = sum(size for digest, size in listed.items() if digest in required)
    with progress.track(f"verifying {len(required)} blobs", total, "B") as tracker:
        for digest, users in required.items():
            if (what := _state(blobs, digest, tracker)) is not None:
                todo = f"copy {blob_file(digest)} from a backup, then repeat its links in the folders below"
                result.append(Finding(what, blob_file(digest), digest, users, todo))
    with database.reading() as session:
        made = list(session.scalars(select(ComposedRow)))
    for row in made:
        whole = not any(item.digest == segment.sha256 for item in result for segment in row.segments)
        size = len(row.header) + sum(segment.size for segment in row.segments)
        if whole and (size != row.size or composed_digest(blobs, row) != row.sha256):
            todo = "restore a backup: the database was changed"
            result.append(Finding("altered", "the database", row.sha256, ("a file of a part",), todo))
    for place, (user, files) in places.items():
        result += _folder_findings(home, place, user, files)
    with database.reading() as session:  # again: a serving coordinator's removals are no damage
        still, kept, owned = required_blobs(session), needed(session), folders(session)
        uploads = set(session.scalars(select(UploadRow.id)))
    gone = required.keys() - still.keys()
    moved = places.keys() - owned.keys()
    result = [item for item in result if item.digest not in gone and str(Path(item.file).parent) not in moved]
    return result + list(_litter(home, listed.keys() - kept, owned.keys(), uploads))


def _state(blobs: Blobs, digest: str, tracker: Tracker) -> str | None:
    """None if the blob's content is `digest`."""
    content = hashlib.sha256()
    try:
        for piece in blobs.content(digest):
            content.update(piece)
            tracker.advance(len(piece))
    except FileNotFoundError:
        return "missing"
    return None if content.hexdigest() == digest else "altered"


def _folder_findings(home: Path, place: str, user: str, files: Mapping[str, str]) -> Iterator[Finding]:
    """A folder's wrong files. Hard links of blobs have already been read."""
    for name, digest in files.items():
        path, blob = home / place / name, home / blob_file(digest)
        what = None
        if path.is_symlink() or not path.is_file():
            what = "missing"
        elif not (blob.is_file() and path.samefile(blob)) and file_sha256(path) != digest:
            what = "altered"
        if what is not None:
            yield Finding(what, f"{place}/{name}", digest, (user,), f"ln -f {blob} {path}")
    present = {path.name for path in (home / place).iterdir()} if (home / place).is_dir() else set()
    for name in sorted(present - files.keys()):
        yield Finding("altered", f"{place}/{name}", "", (user,), "remove it: no row refers to it")


def _foreign_values(settings: Settings) -> Iterator[Finding]:
    for what in foreign_rows(settings.workflow_database):
        yield Finding("altered", "the workflow database", "", (what,), TODO)


def _altered_rows(session: Session) -> Iterator[Finding]:
    """Rows that don't match their digests."""
    todo = "restore a backup: the database was changed"
    for expert in _complete_experts(session):
        if expert_digest({file.name: file.sha256 for file in expert.files}) != expert.digest:
            yield Finding("altered", "the database", expert.digest, (_name(expert),), todo)
    for body in _bodies(session):
        if _body_digest(body) != body.digest or body.seed != files_digest(body.files):
            yield Finding("altered", "the database", body.digest, (_name(body),), todo)
    written = session.execute(select(VersionRow.number, type_coerce(VersionRow.lineage, JSON)))
    lineages = {number: lineage for number, lineage in written}
    for version in _versions(session):
        published = {file.name: file.sha256 for file in version.files}.get(RECORD_FILE)
        lineage = lineages[version.number]
        record = sha256_hex(canonical_json(lineage) + b"\n")
        if lineage_digest(lineage, version.part_of) != version.lineage_digest or published != record:
            yield Finding("altered", "the database", version.lineage_digest, (_name(version),), todo)


def _body_digest(row: BodyRow) -> str:
    files = {file.name: file.sha256 for file in row.files}
    return seed_digest(files[DENSE_BODY_FILE], row.config, row.exponents)


def _litter(home: Path, loose: Iterable[str], owned: Iterable[str], uploads: set[int]) -> Iterator[Finding]:
    todo = "remove it, unless a running workflow is making it"
    places = [f"versions/{path.name}" for path in (home / "versions").glob("*")]
    own = {"incoming", *map(str, uploads)}
    chunks = [f"uploads/{path.name}" for path in (home / "uploads").glob("*") if path.name not in own]
    for file in sorted([*map(blob_file, loose), *(set(places) - set(owned)), *chunks]):
        yield Finding("litter", file, "", (), todo)
