"""The export of a version's inputs, from which another operator makes the version again."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.bodies.merge import DENSE_BODY_FILE, SEED_HEAD_FILE
from moerge.errors import MoergeError
from moerge.files import atomic_file, private_folder
from moerge.models.expert_folder import is_weights
from moerge.progress import Progress
from moerge.versions.card import SeedRecord
from moerge.versions.inputs import ExportedVersion, InputsFolder, expert_inputs
from moerge.versions.version_plan import Slot
from moerge_coordinator.domain import bodies
from moerge_coordinator.domain.sums import contributions_in
from moerge_coordinator.domain.version_inputs import version_inputs
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.folders import Folders
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, ExpertRow, VersionRow
from moerge_proto.version_files import CARD_FILE
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE
from moerge_proto.versions import Lineage


def export_inputs(
    home: Path, database: Database, blobs: Blobs, number: int, out: Path, progress: Progress
) -> ExportedVersion:
    """Writes the inputs of a version into `out`, a folder that only this user may enter, and returns their facts.

    An expert and its contributions are left out, and named, if its owner doesn't allow `redistribute` or has withdrawn
    it, and so is a withdrawn contribution, or a sum with one. The facts are written last.

    Raises:
        MoergeError: there is no such version, it is retired, or an expert's files were purged.
    """
    with database.reading() as session:
        rows = _rows(session, number)
    lineage, writing = rows.lineage, _Writing(InputsFolder(out), blobs)
    private_folder(out)
    with (
        tempfile.TemporaryDirectory(prefix=".inputs-", dir=home) as views,
        progress.track(f"exporting version {number}", 1 + len(lineage.experts) + len(rows.parts), "inputs") as tracker,
    ):
        inputs = version_inputs(database, blobs, Folders(database, blobs, Path(views)), lineage)
        writing.body(rows.body)
        tracker.advance(1)
        for slot in inputs.slots:
            writing.expert(slot, rows.experts[slot.record.digest])
            tracker.advance(1)
        for digest, parts in rows.parts.items():
            writing.contribution(digest, parts, rows.experts)
            tracker.advance(1)
    texts = {name: blobs.local(digest).read_text(encoding="utf-8") for name, digest in rows.signed.items()}
    exported = ExportedVersion(
        number=number,
        lineage=lineage,
        method=inputs.method,
        experts=[slot.record for slot in inputs.slots],
        merged=list(inputs.merged),
        contributed=list(inputs.contributed),
        seed=None if inputs.seed is None else SeedRecord(inputs.seed.name, inputs.seed.license),
        files=writing.files,
        missing=writing.missing,
        release=rows.release,
        signature=texts.get(SIGNATURE_FILE),
        provenance=texts.get(PROVENANCE_FILE),
        card=texts.get(CARD_FILE),
    )
    with atomic_file(writing.folder.record(number)) as file:
        file.write(f"{exported.model_dump_json(indent=1)}\n".encode())
    return exported


@dataclass(frozen=True)
class _Rows:
    """A version's rows. `parts`: sum -> the contributions that it counts. `signed`: name -> digest, of attestations."""

    lineage: Lineage
    release: str
    signed: Mapping[str, str]
    body: BodyRow
    parts: Mapping[str, Sequence[ContributionRow]]
    experts: Mapping[str, ExpertRow]


def _rows(session: Session, number: int) -> _Rows:
    row = session.get(VersionRow, number)
    if row is None or row.retired is not None:
        what = "no such version" if row is None else "it is retired, so its inputs may be gone"
        raise MoergeError(what, where=f"version {number}", todo="run: moerge version list")
    lineage, signed = row.lineage, {file.name: file.sha256 for file in row.attestations}
    sums = dict.fromkeys([*lineage.contributions, *lineage.head.contributions])
    parts = {digest: _contributions(session, digest) for digest in sums}
    of = ExpertRow.digest.in_([*lineage.experts, *(item.expert for some in parts.values() for item in some)])
    experts = {item.digest: item for item in session.scalars(select(ExpertRow).where(of))}
    if purged := [item for item in map(experts.__getitem__, lineage.experts) if item.purged is not None]:
        names = ", ".join(f"{item.digest[:12]} of {item.domain}" for item in purged)
        todo = "none: nobody can make this version again"
        raise MoergeError(f"the files of experts were purged: {names}", where=f"version {number}", todo=todo)
    return _Rows(lineage, row.release, signed, bodies.find(session, lineage.body), parts, experts)


@dataclass(frozen=True)
class _Writing:
    """Written inputs. `files`: name -> SHA-256. `missing`: what is left out, and why."""

    folder: InputsFolder
    blobs: Blobs
    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def _store(self, path: Path, write: Callable[[BinaryIO], str]) -> None:
        with atomic_file(path) as file:
            self.files[self.folder.name(path)] = write(file)

    def _copy(self, path: Path, sha256: str) -> None:
        self._store(path, lambda file: _written(self.blobs.content(sha256), file))

    def body(self, body: BodyRow) -> None:
        for entry in body.files:
            if entry.name in (DENSE_BODY_FILE, SEED_HEAD_FILE) or not is_weights(entry.name):
                self._copy(self.folder.body(body.digest) / entry.name, entry.sha256)

    def expert(self, slot: Slot, row: ExpertRow) -> None:
        if reason := _reason(row):
            self.missing.append(f"expert {row.digest[:12]} of {slot.record.domain}: {reason}")
            return
        for plan in expert_inputs(slot.side_files):
            self._store(self.folder.expert(row.digest) / plan.name, plan.write)

    def contribution(self, digest: str, parts: Sequence[ContributionRow], experts: Mapping[str, ExpertRow]) -> None:
        if reasons := [why for part in parts if (why := _reason_of(part) or _reason(experts[part.expert]))]:
            domains = ", ".join(dict.fromkeys(part.domain for part in parts))
            self.missing.append(f"{parts[0].kind} contribution {digest[:12]} of {domains}: {reasons[0]}")
        else:
            self._copy(self.folder.contribution(digest), digest)


def _contributions(session: Session, digest: str) -> list[ContributionRow]:
    """The contributions that a file counts."""
    every = ContributionRow.digest.in_(list(contributions_in(session, [digest])))
    return list(session.scalars(select(ContributionRow).where(every).order_by(ContributionRow.number)))


def _reason_of(part: ContributionRow) -> str:
    """The reason for leaving a contribution out; empty if there is none."""
    return "" if part.withdrawn is None else "it is withdrawn"


def _reason(expert: ExpertRow) -> str:
    """The reason for leaving an expert and its contributions out; empty if there is none."""
    if expert.withdrawn is not None:
        return "the expert is withdrawn"
    return "" if expert.redistribute else f"{expert.owner} doesn't allow `redistribute`"


def _written(pieces: Iterable[bytes], out: BinaryIO) -> str:
    """Writes a blob's content and returns its SHA-256."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        out.write(piece)
    return digest.hexdigest()
