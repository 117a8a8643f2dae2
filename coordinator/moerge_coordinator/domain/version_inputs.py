"""The rows and blobs of a version's lineage."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.bodies.merge import DENSE_BODY_FILE
from moerge.versions.card import Contributed, ExpertRecord
from moerge.versions.version_plan import Slot, VersionInputs
from moerge_coordinator.domain import bodies
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.folders import Folders
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow
from moerge_proto.statistics_file import DomainCounts, Sums
from moerge_proto.versions import Lineage


def version_inputs(database: Database, blobs: Blobs, folders: Folders, lineage: Lineage) -> VersionInputs:
    """The inputs of a lineage, for `plan_version`.

    Raises:
        FileNotFoundError: a blob is absent.
    """
    with database.reading() as session:
        body = bodies.find(session, lineage.body)
        experts = _experts(session, lineage.experts)
        named = ContributionRow.digest.in_(lineage.contributions)
        parts = {row.digest: row for row in session.scalars(select(ContributionRow).where(named))}
    sha256 = next(file.sha256 for file in body.files if file.name == DENSE_BODY_FILE)
    return VersionInputs(
        slots=[_slot(folders, experts[digest]) for digest in lineage.experts],
        body=folders.body(body),
        body_sha256=sha256,
        method="seed",
        merged=[],
        contributed=[
            Contributed(digest, item.domain, item.owner, item.tokens, item.documents)
            for digest in lineage.contributions
            for item in ([parts[digest]] if digest in parts else _summed(blobs, digest))
        ],
        statistics=lambda: [blobs.source(digest) for digest in lineage.contributions],
        head_statistics=lambda: [blobs.source(digest) for digest in lineage.head.contributions],
        seed=folders.seed(body),
    )


def _summed(blobs: Blobs, digest: str) -> list[DomainCounts]:
    """The counts of each domain of a sum."""
    with Sums(blobs.source(digest)) as file:
        return list(file.domains.values())


def _slot(folders: Folders, row: ExpertRow) -> Slot:
    files = folders.expert(row.digest)
    return Slot(_record(row), files.checkpoint, files, files.checkpoint if row.own_head else None)


def _experts(session: Session, digests: Sequence[str]) -> Mapping[str, ExpertRow]:
    return {row.digest: row for row in session.scalars(select(ExpertRow).where(ExpertRow.digest.in_(digests)))}


def _record(row: ExpertRow) -> ExpertRecord:
    return ExpertRecord(row.digest, row.domain, row.owner, row.license, row.parts_of, row.fitted)
