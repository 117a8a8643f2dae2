"""A training's checkpoint: trained parameters, AdamW's state and the number of steps, in one safetensors file."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import Parameter

from moerge.files import atomic_file
from moerge.models.writer import TensorPlan, write_safetensors

SECONDS = 30.0
"""Minimum interval between two checkpoints."""
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEP = "step"


class Checkpoint:
    """The checkpoint of one training.

    Args:
        path: its file, used for nothing else.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._due = path, time.monotonic() + SECONDS

    def restore(self, parameters: Mapping[str, Parameter], optimizer: torch.optim.AdamW) -> int:
        """Restores parameters and optimizer, and returns the checkpoint's number of steps; 0 without a file."""
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
        parts = [_plan(name, tensor) for name, tensor in _parts(parameters, optimizer)]
        with atomic_file(self._path) as out:
            write_safetensors(out, parts)
        self._due = time.monotonic() + max(SECONDS, 19 * (time.monotonic() - begun))


def _parts(parameters: Mapping[str, Parameter], optimizer: torch.optim.AdamW) -> Iterator[tuple[str, Tensor]]:
    yield _STEP, optimizer.state[next(iter(parameters.values()))][_STEP]
    for name, parameter in parameters.items():
        yield name, parameter.detach()
        for moment in _MOMENTS:
            yield f"{moment}.{name}", optimizer.state[parameter][moment]


def _plan(name: str, tensor: Tensor) -> TensorPlan:
    compute: Callable[[], Tensor] = tensor.cpu
    return TensorPlan(name, tensor.dtype, tuple(tensor.shape), compute)
