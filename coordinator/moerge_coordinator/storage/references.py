"""References from rows to blobs; blobs without one are removed.

A transaction that adds a row sees the row's blobs. Blobs are removed in a later transaction than their last reference.
Transactions run one at a time, so no row ever refers to a removed blob.
"""

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import (
    ArtifactRow,
    BodyRow,
    CohortRow,
    ComposedRow,
    ContributionRow,
    ExpertRow,
    HoldingRow,
    VersionRow,
)
from moerge_proto.experts import ExpertState


def needed(session: Session, *, holdings: bool = True) -> set[str]:
    """The digests of all blobs that rows not purged, refused or retired use, and with `holdings` those of owners.

    A sum stays until one of its contributions is purged.
    """
    experts = select(ExpertRow).where(ExpertRow.state != ExpertState.REFUSED, ExpertRow.purged.is_(None))
    versions = select(VersionRow).where(VersionRow.retired.is_(None))
    purged = select(ContributionRow.cohort).where(
        ContributionRow.purged.is_not(None), ContributionRow.cohort.is_not(None)
    )
    rows = [*session.scalars(experts), *session.scalars(select(BodyRow)), *session.scalars(versions)]
    return {
        *(file.sha256 for row in rows for file in row.files),
        *(file.sha256 for row in session.scalars(versions) for file in row.attestations),
        *(session.scalars(select(HoldingRow.sha256)) if holdings else ()),
        *session.scalars(select(ContributionRow.digest).where(ContributionRow.purged.is_(None))),
        *session.scalars(select(ArtifactRow.sha256)),
        *(segment.sha256 for segments in session.scalars(select(ComposedRow.segments)) for segment in segments),
        *session.scalars(select(CohortRow.sum).where(CohortRow.sum.is_not(None), CohortRow.number.not_in(purged))),
    }


def collect(database: Database, blobs: Blobs, candidates: Iterable[str] | None = None) -> tuple[int, int]:
    """Removes the unused candidates, by default of all blobs; returns their number and bytes."""
    with database.transaction("remove blobs") as session:
        if candidates is None:
            sizes = dict(blobs.digests())
        else:
            sizes = {digest: size for digest in candidates if (size := blobs.size(digest)) is not None}
        superfluous = sizes.keys() - needed(session)
        for digest in superfluous:
            blobs.delete(digest)
        return len(superfluous), sum(sizes[digest] for digest in superfluous)


def drop_artifacts(session: Session) -> None:
    """Removes the rows of derived files without a version; a version in progress writes its files again."""
    versions = list(session.scalars(select(VersionRow).where(VersionRow.retired.is_(None))))
    live = {file.sha256 for row in versions for file in row.files}
    of_parts = {(row.part_of, file.sha256) for row in versions for file in row.files}
    for artifact in session.scalars(select(ArtifactRow)):
        if artifact.sha256 not in live:
            session.delete(artifact)
    for made in session.scalars(select(ComposedRow)):
        if (made.part_of, made.sha256) not in of_parts:
            session.delete(made)
    session.flush()
