"""The comparison of published versions with their plans, which their lineages give anew."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import select

from moerge.blobs.store import Blobs
from moerge.bodies.head_kinds import HEADS
from moerge.build import build
from moerge.client.signatures import differing, read_provenance
from moerge.errors import MoergeError
from moerge.progress import Progress
from moerge.versions.file_plan import FilePlan
from moerge.versions.version_plan import VersionPlan, plan_version
from moerge_coordinator.domain import version_keys
from moerge_coordinator.domain.version_inputs import version_inputs
from moerge_coordinator.operation.findings import Finding
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.folders import Folders
from moerge_coordinator.storage.tables import ArtifactRow, ExpertRow, VersionRow
from moerge_coordinator.storage.version_key import public_key
from moerge_proto.messages import FileEntry
from moerge_proto.version_files import CARD_FILE, HEAD_FILE
from moerge_proto.version_keys import successors
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE, SignedVersion, fingerprint
from moerge_proto.versions import Lineage

_TODOS = {
    "replaced": "the version was published with another file: restore a backup, and tell everybody who pulled it",
    "unchecked": "none, if another release of moerge published the version; otherwise: moerge version sign",
}


def replaced_files(
    settings: Settings, database: Database, blobs: Blobs, progress: Progress, *, solve: bool
) -> Iterator[Finding]:
    """The files that a version was not published with, though rows, blobs and folders agree on them.

    Every file is compared with the version's signature, and its provenance is verified. Body, experts and texts are
    made again from the lineage and compared, except the card, which has facts that change, such as a source. A solved
    file is compared with the row of its key, and made again only with `solve`: equal bits need the device kind and the
    build that solved it.
    "unchecked" are different texts of another release, and a version that nobody has signed, or another key than the
    home's and those from which signed rotations lead to it.
    """
    with database.reading() as session:
        rows = list(session.scalars(select(VersionRow).where(VersionRow.retired.is_(None)).order_by(VersionRow.number)))
        kept = {row.key: row.sha256 for row in session.scalars(select(ArtifactRow))}
        purged = set(session.scalars(select(ExpertRow.digest).where(ExpertRow.purged.is_not(None))))
        keys = version_keys.messages(session)
    key = public_key(settings.home)
    trusted = None if key is None else fingerprint(key)
    with (
        tempfile.TemporaryDirectory(prefix=".verify-", dir=settings.home) as home,  # existing views may be altered
        progress.track(f"recomputing {len(rows)} versions", len(rows), "versions") as tracker,
    ):
        made_again = _MadeAgain(database, blobs, Folders(database, blobs, Path(home)), kept, solve=solve)
        for row in rows:
            tracker.advance(1)
            files, replaced, release = {file.name: file.sha256 for file in row.files}, list[str](), row.release
            if row.signature is None:
                yield _finding(row, SIGNATURE_FILE, "", "unchecked")
            elif (signed := _signed(blobs, row.signature.sha256, row)) is None:
                yield _finding(row, SIGNATURE_FILE, row.signature.sha256)
                continue
            else:
                if trusted is not None and trusted not in successors(keys, signed.fingerprint):
                    yield _finding(row, SIGNATURE_FILE, row.signature.sha256, "unchecked")
                if not _is_genuine(blobs, row.provenance, signed):
                    yield _finding(row, PROVENANCE_FILE, "" if row.provenance is None else row.provenance.sha256)
                card = {} if row.card is None else {CARD_FILE: row.card.sha256}
                replaced, release = differing(signed.files, files | card), signed.release
                for name in replaced:
                    yield _finding(row, name, signed.files.get(name, ""))
            if purged.isdisjoint(row.lineage.experts):  # else files of an input were removed
                yield from made_again.findings(row, replaced, release)


@dataclass(frozen=True)
class _MadeAgain:
    """The plans of versions, by their lineages, and the digests of files that several have."""

    database: Database
    blobs: Blobs
    folders: Folders
    kept: Mapping[str, str]  # key -> digest, of solved files' rows
    solve: bool
    _digests: dict[str, str] = field(default_factory=dict)

    def findings(self, row: VersionRow, replaced: Sequence[str], release: str) -> Iterator[Finding]:
        """The files of a version, but for the card and the replaced ones, that differ from its plan's."""
        plan = plan_version(row.lineage, version_inputs(self.database, self.blobs, self.folders, row.lineage))
        published = {file.name: file.sha256 for file in row.files}
        for file in plan.files:
            if file.name in (CARD_FILE, *replaced):
                continue
            expected = self._expected(file, plan, row.lineage)
            if published.get(file.name) != expected:
                other = file in plan.texts and release != build().version
                yield _finding(row, file.name, expected, "unchecked" if other else "replaced")
        for name in published.keys() - {file.name for file in plan.files} - set(replaced):
            yield _finding(row, name, "")

    def _expected(self, file: FilePlan, plan: VersionPlan, lineage: Lineage) -> str:
        if not self.solve and _is_solved(file, plan, lineage) and (digest := self.kept.get(file.key)) is not None:
            return digest
        if file.key not in self._digests:
            self._digests[file.key] = file.digest()
        return self._digests[file.key]


def _is_solved(file: FilePlan, plan: VersionPlan, lineage: Lineage) -> bool:
    return file in plan.solved or (file.name == HEAD_FILE and HEADS[lineage.head.method].solved)


def _signed(blobs: Blobs, digest: str, row: VersionRow) -> SignedVersion | None:
    """The verified signature of a version; None if it is another's, or not by the key that the row names."""
    try:
        signed = SignedVersion.of(blobs.local(digest).read_bytes())
    except ValueError:
        return None
    return signed if (signed.name, signed.fingerprint) == (row.name, row.key) else None


def _is_genuine(blobs: Blobs, provenance: FileEntry | None, signed: SignedVersion) -> bool:
    bundle = None if provenance is None else blobs.local(provenance.sha256).read_text(encoding="utf-8")
    try:
        read_provenance(bundle, signed, PROVENANCE_FILE)
    except MoergeError:
        return False
    return True


def _finding(row: VersionRow, name: str, digest: str, what: str = "replaced") -> Finding:
    return Finding(what, f"versions/{row.name}/{name}", digest, (f"version {row.name}",), _TODOS[what])
