"""The memory for a worker's settings."""

import torch

from moerge.errors import MoergeError
from moerge.statistics.memory import Free, free_bytes, layer_groups
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_workers.settings import Settings


def free_memory(settings: Settings) -> Free:
    """The free memory of this machine, not of an existing cluster's nodes."""
    host = free_bytes("cpu")
    if settings.ray_address is not None:
        return Free(host, None)
    return Free(host, host if settings.device == "cpu" else free_bytes(settings.device))


def require_gpus(settings: Settings) -> None:
    """Require a GPU for each slot, if the model runs on GPUs of this machine.

    Raises:
        MoergeError: torch finds fewer.
    """
    gpus = torch.cuda.device_count()
    if settings.device != "cuda" or settings.ray_address is not None or gpus >= settings.slots:
        return
    found, todo = "torch finds no GPU", "install torch with CUDA and the GPU's driver, or use --device cpu"
    if gpus:
        found = f"{settings.slots} slots need {settings.slots} GPUs; torch finds {gpus}"
        todo = f"use --slots {gpus}, or --device cpu"
    raise MoergeError(found, where="--device", todo=todo)


def that_fit(
    work: RouterPass | TrunkPass, settings: Settings, free: Free, begun: int = 1
) -> list[RouterPass | TrunkPass]:
    """The passes over the layer groups: the settings' number, or the fewest that fit, but at least `begun`.

    Raises:
        MoergeError: they don't fit, or there are fewer layers; names the setting to change.
    """
    return layer_groups(
        work,
        settings.statistics,
        free,
        settings.slots,
        shared=settings.ray_address is None and settings.device == "cpu",
        groups=settings.layer_groups,
        begun=begun,
    )
