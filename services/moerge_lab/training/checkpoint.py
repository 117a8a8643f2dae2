"""A training's checkpoint: trained parameters, AdamW's state and the number of steps, in one safetensors file."""

import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch.nn import Parameter

from moerge.files import atomic_file
from moerge.models.writer import TensorPlan, write_safetensors

SECONDS = 30.0
"""Minimum interval between two checkpoints."""
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEP = "step"


class Checkpoint:
    """The checkpoint of one training, in a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._due = path, time.monotonic() + SECONDS

    def restore(self, parameters: Mapping[str, Parameter], optimizer: torch.optim.AdamW) -> int:
        """Returns the checkpoint's number of steps; 0 without a file."""
        if not self._path.is_file():
            return 0
        device = str(next(iter(parameters.values())).device)
        with safe_open(self._path, framework="pt", device=device) as file, torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(file.get_tensor(name))
                state = {moment: file.get_tensor(f"{moment}.{name}") for moment in _MOMENTS}
                optimizer.state[parameter] = {_STEP: file.get_tensor(_STEP).clone(), **state}
            return int(file.get_tensor(_STEP))

    def keep(self, parameters: Mapping[str, Parameter], optimizer: torch.optim.AdamW) -> None:
        """Writes the file if due: after the interval, in at most a twentieth of the time."""
        begun = time.monotonic()
        if begun < self._due:
            return
        tensors = {_STEP: optimizer.state[next(iter(parameters.values()))][_STEP]}
        for name, parameter in parameters.items():
            tensors[name] = parameter.detach()
            tensors |= {f"{moment}.{name}": optimizer.state[parameter][moment] for moment in _MOMENTS}
        plans = [TensorPlan(name, item.dtype, tuple(item.shape), item.cpu) for name, item in tensors.items()]
        with atomic_file(self._path, private=True) as out:
            write_safetensors(out, plans)
        self._due = time.monotonic() + max(SECONDS, 19 * (time.monotonic() - begun))
