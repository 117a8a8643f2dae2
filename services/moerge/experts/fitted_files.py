"""The files of a fitted expert: each layer's MLP as soon as it is fitted, and at the end a dense checkpoint."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moerge.files import atomic_file
from moerge.models.config import body_settings
from moerge.models.dense import mlp_names
from moerge.models.dense_files import Dense, DenseFiles
from moerge.models.expert_folder import TOKENIZER_FILES
from moerge.models.stored import SINGLE
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
    """The bytes that a fit writes: the fitted expert, and until it is whole its MLPs in float32."""
    specs = expert.checkpoint.specs
    fitted = sum(torch.Size(specs[name].shape).numel() for name in mlp_names(expert))
    return sum(spec.bytes for spec in specs.values()) + torch.float32.itemsize * fitted


def write_fitted(expert: DenseFiles, body: Dense, fitted: FittedLayers, folder: Path) -> Path:
    """Writes a dense checkpoint: the body with fitted MLPs in the expert's dtypes; returns its folder.

    It is a complete expert: a version uses its MLPs, and it runs alone.
    """
    specs, merged, layers = expert.checkpoint.specs, body.checkpoint, expert.config.num_hidden_layers

    def tensor(layer: int, name: str, dtype: torch.dtype) -> Tensor:
        return fitted.tensor(layer, name).to(dtype)

    plans = [TensorPlan(name, at.dtype, at.shape, partial(merged.tensor, name)) for name, at in merged.specs.items()]
    for layer in range(layers):
        for pattern in expert.family.mlp:
            name = pattern.format(layer=layer)
            at = specs[name]
            plans.append(TensorPlan(name, at.dtype, at.shape, partial(tensor, layer, name, at.dtype)))
    fields = json.loads(expert.side_file("config.json").read_text(encoding="utf-8"))
    fields |= body_settings({plan.name: plan.shape for plan in plans})
    for name in TOKENIZER_FILES:
        if (path := expert.side_file(name)).is_file():
            with atomic_file(folder / name) as out:
                out.write(path.read_bytes())
    with atomic_file(folder / "config.json") as out:
        out.write((json.dumps(fields, indent=2) + "\n").encode())
    with atomic_file(folder / SINGLE) as out:
        write_safetensors(out, plans)
    fitted.clear(layers)
    return folder
