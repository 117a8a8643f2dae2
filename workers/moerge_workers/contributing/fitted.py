"""The stage of the fitted expert: fits it to a trunk, registers it, and sends it if the coordinator lacks it."""

from moerge.client.register import WithdrawnError
from moerge.models.dense_files import DenseTrunk
from moerge.models.expert_folder import DenseExpert
from moerge_proto.experts import Fitted
from moerge_proto.trunks import Trunk
from moerge_workers.computing.fitting import fitted_folder
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.expert import KeptError, register_expert


def run(context: Context, trunk: Trunk, weights: DenseTrunk) -> DenseExpert | None:
    """The expert fitted to a trunk, once the coordinator has it, or in a dry run would; `weights` are the trunk's.

    The original expert, if the owner refused or withdrew the fitted one, or there is too little text. None: the owner
    hasn't answered.
    """
    own = context.expert
    folder = fitted_folder(context.settings, context.data, context.events, own, weights)
    if folder is None:
        return own
    fitted = DenseExpert(own.domain, folder, own.owner, own.license, trained=own)
    try:
        register_expert(context, fitted, Fitted(expert=own.digest, trunk=trunk.digest))
    except WithdrawnError:
        context.events.say("the fitted expert was withdrawn; contributing with the original expert")
        return own
    except KeptError as kept:
        if not context.settings.dry_run:
            return own if context.outbox.is_refused(kept.item) else None
    return fitted
