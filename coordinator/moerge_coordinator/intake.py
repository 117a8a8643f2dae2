"""An expert's files taken in: shown as a folder and checked against the experts that are there."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine, select

from moerge.architectures.config import Vocabulary, read_config
from moerge.blobs.local import LocalBlobs
from moerge.experts import check_expert
from moerge_coordinator.database import transaction
from moerge_coordinator.tables import ExpertRow
from moerge_proto.experts import ExpertState
from moerge_proto.messages import FileEntry


def show_folder(
    engine: Engine, blobs: LocalBlobs, target: Path, entries: Sequence[FileEntry], who: str, vocabulary: Vocabulary
) -> str:
    """Makes `target` the folder of an expert's blobs and returns its family; a refusal leaves none.

    Only one may run at a time: two at once could each be the first expert, and unlike each other.

    Raises:
        CheckpointError, IncompatibleExpertError: config, tokenizer or tensor headers are wrong or unlike the others'.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
    try:
        for entry in entries:
            blobs.link(entry.sha256, folder / entry.name)
        family, _ = check_expert(folder, _reference(engine, target.parent), who, vocabulary)
        shutil.rmtree(target, ignore_errors=True)  # from a try that was cut before its row was written
        folder.replace(target)
        return family.model_type
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reference(engine: Engine, experts: Path) -> Path | None:
    """The folder of the expert that all others must be like: the oldest of those with the longest vocabulary."""
    with transaction(engine) as session:
        query = select(ExpertRow.digest).where(ExpertRow.state != ExpertState.REFUSED.value, ExpertRow.family != "")
        digests = session.scalars(query.order_by(ExpertRow.number)).all()
    folders = [experts / digest for digest in digests]
    return max(folders, key=lambda folder: read_config(folder).vocab_size, default=None)
