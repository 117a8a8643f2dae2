"""The expert with MLPs fitted to a trunk, made at home from the owner's documents and kept for as long as the trunk."""

import os
import shutil
from functools import partial
from pathlib import Path

from rich.filesize import decimal

from moerge.documents.fitting_sample import fitting_sample, fitting_tokens
from moerge.documents.shards import enough
from moerge.documents.splits import text_digest
from moerge.errors import MoergeError
from moerge.experts.fitting import fit, fitting_bytes
from moerge.files import sync_folder
from moerge.models.batches import batches
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.statistics.memory import free_bytes, is_out_of_memory
from moerge_proto.progress import Stage
from moerge_workers.data.splits import Data
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events


def fitted_folder(settings: Settings, data: Data, events: Events, expert: DenseExpert, trunk: Path) -> Path | None:
    """The folder of the expert with MLPs fitted to the trunk in a file beside it; made if it isn't there yet.

    None: by the policy there is too little text to fit to, which is said.

    Raises:
        MoergeError: the memory isn't enough.
    """
    folder = trunk.with_name(f"fitted-{expert.digest[:12]}")
    if folder.is_dir():
        return folder
    hidden = expert.config.hidden_size
    least = settings.policy.min_documents
    sample = sample_of(settings, data, events, fitting_tokens(hidden), least, "choosing documents to fit to")
    rows = [row for document in sample for row in document]
    tokens = sum(row.count for row in rows)
    if (why := settings.policy.too_small(len(sample), tokens, enough(hidden))) is not None:
        events.say(f"the MLPs stay as they are: all there is to fit them to is {why}")
        return None
    asked, there = fitting_bytes(expert, fitting_tokens(hidden)), free_bytes(settings.device)
    if there is not None and asked > there:
        raise _too_large(f"fitting takes {decimal(asked)} of memory, and {decimal(there)} are there")
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
            raise _too_large("the memory isn't enough to fit the MLPs") from error
    os.replace(part, folder)
    sync_folder(folder.parent)
    return folder


def _too_large(found: str) -> MoergeError:
    return MoergeError(found, where="--fit", todo="choose a larger machine or another --device, or go on without --fit")


def sample_of(
    settings: Settings, data: Data, events: Events, tokens: int, least_documents: int, title: str
) -> list[list[Tokens]]:
    """The rows of each document of a sample of the statistics' split; `title` tells what it is for."""
    events.enter(Stage.READING)
    with events.track(title, data.size(), "B") as tracker:
        documents = (
            (text_digest(document.text), partial(data.encode, document))
            for _, split, document in data.documents(tracker)
            if split == "statistics"
        )
        return fitting_sample(documents, settings.statistics, tokens, least_documents)
