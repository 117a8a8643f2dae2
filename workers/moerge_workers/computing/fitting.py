"""The expert with MLPs fitted to a trunk, from the owner's documents; kept as long as the trunk."""

import os
import shutil
from pathlib import Path

from rich.filesize import decimal

from moerge.documents.fitting_sample import fitting_tokens
from moerge.documents.shards import enough
from moerge.errors import MoergeError
from moerge.experts.fitting import fit, fitting_bytes
from moerge.files import sync_folder
from moerge.models.batches import batches
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.memory import free_bytes, is_out_of_memory
from moerge_proto.progress import Stage
from moerge_workers.computing.sample import sample_of
from moerge_workers.data.splits import Data
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events


def fitted_folder(settings: Settings, data: Data, events: Events, expert: DenseExpert, trunk: Path) -> Path | None:
    """The folder of the expert with MLPs fitted to the trunk, beside the trunk's file; made if missing.

    None, with a message: too little text for the policy.

    Raises:
        MoergeError: not enough memory.
    """
    folder = trunk.with_name(f"fitted-{expert.digest[:12]}")
    if folder.is_dir():
        return folder
    hidden = expert.config.hidden_size
    least = settings.policy.min_documents
    title, asked = "choosing documents to fit to", fitting_tokens(hidden)
    sample = sample_of(data, events, settings.statistics, asked, least, title)
    rows = [row for document in sample for row in document]
    tokens = sum(row.count for row in rows)
    if (why := settings.policy.too_small(len(sample), tokens, enough(hidden))) is not None:
        events.say(f"the MLPs are not fitted, because the text is too little: {why}")
        return None
    needed, there = fitting_bytes(expert, asked), free_bytes(settings.device)
    if there is not None and needed > there:
        raise _too_large(f"fitting needs {decimal(needed)} of memory; {decimal(there)} are free")
    total = tokens * expert.config.num_hidden_layers
    part = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)  # of a worker that was killed
    events.enter(Stage.COMPUTING)
    with events.track(f"fitting {settings.domain}'s MLPs to the trunk", total, "tokens") as tracker:
        try:
            cut_up = list(batches(rows, settings.statistics.batch_tokens))
            fit(expert.folder, trunk, cut_up, part, settings.device, tracker.advance)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise _too_large("not enough memory to fit the MLPs") from error
    os.replace(part, folder)
    sync_folder(folder.parent)
    return folder


def _too_large(found: str) -> MoergeError:
    return MoergeError(found, where="--fit", todo="use a larger machine or another --device, or run without --fit")
