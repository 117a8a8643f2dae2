"""A seed's own parts as an expert, and the seed of other parts."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.bodies.merge import SEED_PARTS_FILE
from moerge.models.expert_folder import expert_digest, is_weights
from moerge.models.stored import SINGLE
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.folders import StoredFiles
from moerge_coordinator.storage.tables import BodyRow
from moerge_proto.experts import Parts
from moerge_proto.messages import FileEntry
from moerge_proto.problems import ProblemType


def files_of(seed: BodyRow) -> list[FileEntry]:
    """The seed's parts as an expert's files."""
    parts = [file.model_copy(update={"name": SINGLE}) for file in seed.files if file.name == SEED_PARTS_FILE]
    return sorted([*parts, *(file for file in seed.files if not is_weights(file.name))], key=lambda file: file.name)


def digest_of(seed: BodyRow) -> str:
    """The digest of the seed's parts as an expert."""
    return expert_digest({file.name: file.sha256 for file in files_of(seed)})


def parts_of(ports: Ports, seed: BodyRow) -> StoredFiles:
    """The seed's parts, in a folder made on demand."""
    return ports.folders.shown(files_of(seed), ports.folders.experts / digest_of(seed))


def seed_of(session: Session, parts: Parts) -> BodyRow:
    """The seed's body that parts are for."""
    row = session.scalar(select(BodyRow).where(BodyRow.digest == parts.body))
    if row is None:
        problem = f"no seed with body {parts.body} is registered"
        raise RefusedError(ProblemType.WRONG_BODY, problem, where="parts.body", todo="make parts for the current one")
    return row
