"""The stage of the fitted expert: fits the MLPs to a body, on the owner's documents, and registers and sends it."""

import os
from pathlib import Path

from moerge.client.register import WithdrawnError
from moerge.documents.shards import enough
from moerge.errors import MoergeError
from moerge.experts.fitting import fit
from moerge.experts.sample import WAYS, fitting_sample_that_fits
from moerge.files import sync_folder
from moerge.memory.machine import free_for, is_out_of_memory
from moerge.models.dense_files import DenseBody
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge_proto.bodies import Body
from moerge_proto.experts import Fitted
from moerge_proto.progress import Stage
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.expert import KeptError, register_expert


def run(context: Context, body: Body, weights: DenseBody) -> DenseExpert | None:
    """The expert fitted to a body, once the coordinator has it, or in a dry run would; `weights` are the body's.

    The original expert, if the owner refused or withdrew the fitted one, or there is too little text. None: the owner
    hasn't answered.
    """
    own = context.expert
    folder = fitted_folder(context, weights)
    if folder is None:
        return own
    fitted = DenseExpert(own.domain, folder, own.owner, own.license, trained=own)
    try:
        register_expert(context, fitted, Fitted(expert=own.digest, body=body.digest))
    except WithdrawnError:
        context.events.say("the fitted expert was withdrawn; contributing with the original expert")
        return own
    except KeptError as kept:
        if not context.settings.dry_run:
            return own if context.outbox.history.decision(kept.item) == "refused" else None
    return fitted


def fitted_folder(context: Context, body: DenseBody) -> Path | None:
    """The folder of the expert with MLPs fitted to the body, beside the body's file; made if missing.

    None, with a message: too little text for the policy.

    Raises:
        MoergeError: not enough memory.
    """
    settings, expert, events = context.settings, context.expert, context.events
    folder = body.checkpoint.path.with_name(f"fitted-{expert.digest[:12]}")
    if folder.is_dir():
        return folder
    shard, policy = enough(expert.config.hidden_size), settings.policy

    def sample(most: int) -> list[list[Tokens]]:
        return context.sample(settings.statistics, most, policy.min_documents, "choosing documents to fit to")

    least, free = policy.least_tokens(shard), free_for(settings.device)
    documents, rows = fitting_sample_that_fits(
        expert, settings.statistics, sample, settings.device, free, events.say, least
    )
    tokens = sum(row.count for document in documents for row in document)
    if (why := policy.too_small(len(documents), tokens, shard)) is not None:
        events.say(f"the MLPs are not fitted, because the text is too little: {why}")
        return None
    total = tokens * expert.config.num_hidden_layers
    part = folder.with_name(f".{folder.name}.tmp")
    events.enter(Stage.COMPUTING)
    with events.track(f"fitting {settings.domain}'s MLPs to the body", total, "tokens") as tracker:
        try:
            fit(expert, body, rows, part, settings.device, tracker.advance)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            problem = "not enough memory to fit the MLPs"
            raise MoergeError(problem, where="memory", todo=f"change one of these: {', '.join(WAYS)}") from error
    os.replace(part, folder)
    sync_folder(folder.parent)
    return folder
