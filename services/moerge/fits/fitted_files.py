"""Each layer's MLP in a file of its own, as soon as it is fitted."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moerge.files import atomic_file
from moerge.fits.parts import part_bytes
from moerge.models.dense import mlp_names
from moerge.models.dense_files import DenseFiles
from moerge.models.writer import TensorPlan, write_safetensors


class FittedLayers:
    """Fitted MLPs in a file per layer, float32; files of another fit, by its digest `work`, are not read."""

    def __init__(self, folder: Path, work: str) -> None:
        self._folder, self._work = folder, work

    def __contains__(self, layer: int) -> bool:
        try:
            with safe_open(self._file(layer), framework="pt") as file:
                return (file.metadata() or {}).get("work") == self._work
        except (OSError, SafetensorError):
            return False

    def write(self, layer: int, tensors: Mapping[str, Tensor]) -> None:
        plans = [TensorPlan(name, tensor.dtype, tuple(tensor.shape), tensor.cpu) for name, tensor in tensors.items()]
        with atomic_file(self._file(layer)) as out:
            write_safetensors(out, plans, metadata={"work": self._work})

    def tensor(self, layer: int, name: str) -> Tensor:
        with safe_open(self._file(layer), framework="pt") as file:
            tensor: Tensor = file.get_tensor(name).clone()
            return tensor

    def clear(self, layers: int) -> None:
        for layer in range(layers):
            self._file(layer).unlink(missing_ok=True)

    def _file(self, layer: int) -> Path:
        return self._folder / f"fitted-{layer}.part"


def fitted_bytes(expert: DenseFiles) -> int:
    """The bytes that a fit writes: the expert's parts, and until they are whole its MLPs in float32."""
    specs = expert.checkpoint.specs
    fitted = sum(torch.Size(specs[name].shape).numel() for name in mlp_names(expert))
    return part_bytes(expert) + torch.float32.itemsize * fitted
