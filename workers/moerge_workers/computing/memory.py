"""The memory for a worker's settings."""

import torch

from moerge.errors import MoergeError
from moerge.memory.machine import Free, free_bytes
from moerge.memory.room import Room, Slots, room_for
from moerge.statistics.passes import Pass, need_of
from moerge_workers.settings import Settings


def free_memory(settings: Settings) -> Free:
    """The free memory of this machine, not of an existing cluster's nodes."""
    here = settings.ray_address is None and settings.device == "cuda"
    return Free(free_bytes("cpu"), free_bytes("cuda") if here else None)


def require_gpus(settings: Settings) -> None:
    """Require a GPU for each slot, if the model runs on GPUs of this machine."""
    gpus = torch.cuda.device_count()
    if settings.device != "cuda" or settings.ray_address is not None or gpus >= settings.slots:
        return
    problem, todo = "torch finds no GPU", "install torch with CUDA and the GPU's driver, or set device to cpu"
    if gpus:
        problem = f"{settings.slots} slots need {settings.slots} GPUs; torch finds {gpus}"
        todo = f"set slots to {gpus}, or device to cpu"
    raise MoergeError(problem, where="device", todo=todo)


def room_of(work: Pass, settings: Settings, free: Free) -> Room:
    """The memory for a pass's hidden states in each slot; MoergeError: it doesn't fit, names the setting to change."""
    slots = Slots(settings.slots, here=settings.ray_address is None)
    need = need_of(work, settings.statistics)
    return room_for(need, settings.statistics, free, slots, settings.host_memory)
