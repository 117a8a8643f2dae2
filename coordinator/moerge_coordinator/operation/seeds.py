"""Registration of seed models, in the coordinator's home."""

import re
from collections.abc import Callable

from moerge.blobs.store import Blobs
from moerge.bodies.merge import MergedBody, seed_body
from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import check_expert, expert_digest, file_digests, require_finite
from moerge.models.sources import checkpoint_folder, hub_id
from moerge.models.tokenizers import read_tokenizer
from moerge.progress import Progress
from moerge_coordinator.domain import bodies
from moerge_coordinator.storage.database import Database
from moerge_proto.messages import LICENSE, UNKNOWN


def register(
    database: Database,
    blobs: Blobs,
    model: str,
    progress: Progress,
    license: str = UNKNOWN,
    say: Callable[[str], None] = lambda text: None,
) -> MergedBody:
    """Registers a model, a folder or hub id, as a seed; its body becomes the current one. Idempotent.

    Args:
        license: its SPDX identifier; a later registration may name it.
        say: gets a sentence on tensors of a wrapper that are left out.

    Raises:
        CheckpointError, IncompatibleExpertError: the model can't be read, or has no exact stock MoE class.
        MoergeError: a coordinator that started meanwhile has removed a file.
    """
    folder = checkpoint_folder(model)
    seed, hub = DenseFiles(folder), hub_id(model)
    if not re.fullmatch(LICENSE, license):
        todo = "name an SPDX identifier, such as Apache-2.0"
        raise MoergeError(f"{license!r} is not the name of a licence", where="`license`", todo=todo)
    check_expert(seed, None, "the seed", say=say)
    read_tokenizer(seed)
    total = sum(spec.bytes for spec in seed.checkpoint.specs.values())
    with progress.track("checking the seed", total, "B") as tracker:
        require_finite(seed.checkpoint, tracker)
    source = folder.resolve().name if hub is None else f"{hub}@{folder.name}"  # a hub's folder is named by its commit
    while True:
        body = _stored(seed, blobs, progress, source, license)
        with database.transaction("register seed") as session:
            if bodies.make_current(session, blobs, body) is not None:
                return body


def _stored(seed: DenseFiles, blobs: Blobs, progress: Progress, source: str, license: str) -> MergedBody:
    try:
        with blobs.holding():
            body = seed_body(seed, blobs, progress, source, license)
    except FileNotFoundError as error:
        problem = "the file was removed before it was complete, as by a coordinator that has just started"
        raise MoergeError(problem, where=str(error.filename), todo="run it again") from error
    return body.model_copy(update={"model": expert_digest(file_digests(seed))})
