"""An expert's files checked against the experts that are there, before it is one of them."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.models.expert_folder import check_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import ExpertRow, HoldingRow
from moerge_proto.experts import ExpertState, Vocabulary
from moerge_proto.messages import FileEntry
from moerge_proto.problems import ProblemType


def others(session: Session) -> list[str]:
    """The experts that a new one must be like, oldest first. Those that are still being fetched are not among them, nor
    fitted ones.
    """
    alive = (ExpertState.RECEIVED.value, ExpertState.READY.value)
    query = select(ExpertRow.digest).where(ExpertRow.state.in_(alive), ExpertRow.family != "")
    query = query.where(ExpertRow.fitted_to.is_(None))
    return list(session.scalars(query.order_by(ExpertRow.number)))


def checked_family(
    blobs: Blobs, place: Path, entries: Sequence[FileEntry], reference: Path | None, who: str, vocabulary: Vocabulary
) -> str:
    """The family of an expert of these files, shown for a moment as a folder in `place`.

    Raises:
        CheckpointError, IncompatibleExpertError: config, tokenizer or tensor headers are wrong or unlike `reference`.
    """
    place.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".", dir=place))
    try:
        for entry in entries:
            blobs.link(entry.sha256, folder / entry.name)
        family, _ = check_expert(folder, reference, who, vocabulary)
        return family.model_type
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_held(session: Session, owner: str, entries: Sequence[FileEntry]) -> None:
    """Requires that no refusal of another expert has taken a shared file away meanwhile.

    Raises:
        RefusedError: one has.
    """
    for entry in entries:
        if session.get(HoldingRow, (owner, entry.sha256)) is None:
            where = f"files.{entry.name}"
            raise RefusedError(ProblemType.NOT_READY, "it was discarded meanwhile", where=where, todo="upload it again")
