"""The expert with MLPs fitted to a trunk, from the owner's documents; kept as long as the trunk."""

import os
from pathlib import Path

from moerge.documents.shards import enough
from moerge.errors import MoergeError
from moerge.experts.fitting import fit
from moerge.experts.sample import WAYS, fitting_sample_that_fits
from moerge.files import sync_folder
from moerge.memory.machine import free_for, is_out_of_memory
from moerge.models.dense_files import DenseTrunk
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge_proto.progress import Stage
from moerge_workers.computing.sample import sample_of
from moerge_workers.data.documents import Data
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events


def fitted_folder(
    settings: Settings, data: Data, events: Events, expert: DenseExpert, trunk: DenseTrunk
) -> Path | None:
    """The folder of the expert with MLPs fitted to the trunk, beside the trunk's file; made if missing.

    None, with a message: too little text for the policy.

    Raises:
        MoergeError: not enough memory.
    """
    folder = trunk.checkpoint.path.with_name(f"fitted-{expert.digest[:12]}")
    if folder.is_dir():
        return folder
    hidden, policy = expert.config.hidden_size, settings.policy

    def sample(asked: int) -> list[list[Tokens]]:
        title = "choosing documents to fit to"
        return sample_of(data, events, settings.statistics, asked, policy.min_documents, title)

    least, free = policy.least_tokens(enough(hidden)), free_for(settings.device)
    documents, cut_up = fitting_sample_that_fits(
        expert, settings.statistics, sample, settings.device, free, events.say, least
    )
    tokens = sum(row.count for rows in documents for row in rows)
    if (why := policy.too_small(len(documents), tokens, enough(hidden))) is not None:
        events.say(f"the MLPs are not fitted, because the text is too little: {why}")
        return None
    total = tokens * expert.config.num_hidden_layers
    part = folder.with_name(f".{folder.name}.tmp")
    events.enter(Stage.COMPUTING)
    with events.track(f"fitting {settings.domain}'s MLPs to the trunk", total, "tokens") as tracker:
        try:
            fit(expert, trunk, cut_up, part, settings.device, tracker.advance)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            problem = "not enough memory to fit the MLPs"
            raise MoergeError(problem, where="memory", todo=f"change one of these: {', '.join(WAYS)}") from error
    os.replace(part, folder)
    sync_folder(folder.parent)
    return folder
