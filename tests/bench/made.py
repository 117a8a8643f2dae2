"""Weights of any size without files, for speed and memory alone: random numbers, repeated."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig

from moerge.files import atomic_file
from moerge.models.dense import DenseWeights
from moerge.models.dense_files import DenseFiles
from moerge.models.reader import Checkpoint, model_shapes
from moerge.models.stored import SINGLE, TensorSpec
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.statistics.passes import Input, RouterPass
from moerge_proto.digests import sha256_hex
from moerge_proto.statistics_file import exponent

_PERIOD = 4_194_301  # a prime, so that rows differ
_DEVIATION = 0.02
NOWHERE = Path("made")


class MadeTensors(Checkpoint):
    """Tensors that are made when they are read, at the speed of a copy; equal names give equal tensors.

    Matrices are normal with deviation 0.02; the gains of norms are 1.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        self.path = NOWHERE
        self.specs = {name: TensorSpec(self.path / name, shape, dtype) for name, shape in shapes.items()}
        drawn = torch.randn(_PERIOD, generator=torch.Generator().manual_seed(0)) * _DEVIATION
        self._values = drawn.to(dtype).repeat(2)

    def tensor(self, name: str) -> Tensor:
        spec = self.specs[name]
        made = torch.empty(spec.shape, dtype=spec.dtype)
        self.copy(name, made)
        return made

    def copy(self, name: str, out: Tensor) -> None:
        if out.dim() == 1:
            out.fill_(1)
            return
        begin = int(sha256_hex(name.encode()), 16) % _PERIOD
        for part in out.view(-1).split(_PERIOD):
            part.copy_(self._values[begin : begin + len(part)])


class MadeFiles(DenseFiles):
    """A dense model's config, without files."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(NOWHERE)
        self.config = config


@dataclass(frozen=True, kw_only=True)
class MadePass(RouterPass):
    """A router pass with made weights; it has no files."""

    config: LlamaConfig

    def weights(self) -> DenseWeights:
        made = MadeTensors(model_shapes(self.config), getattr(torch, self.precision))
        return DenseWeights(self.config, {name: (made, name) for name in made.specs})

    def inputs(self) -> list[list[Input]]:
        gains = torch.ones(self.config.hidden_size)
        parts = ((f"layers.{layer}", bits) for layer, bits in enumerate(self.exponents))
        return [[Input(f"model.{at}.mlp", f"{at}.gram", bits, gains, f"{at}.cross")] for at, bits in parts]


def made_pass(config: LlamaConfig, precision: str, device: str) -> MadePass:
    bits = [exponent(config.hidden_size)] * config.num_hidden_layers
    return MadePass(MadeFiles(config), MadeFiles(config), bits, precision, device, config=config)


def write_expert(folder: Path, config: LlamaConfig, dtype: torch.dtype) -> None:
    """Writes made weights as an expert in one file, without a tokenizer."""
    made = MadeTensors(model_shapes(config), dtype)
    plans = [TensorPlan(name, dtype, spec.shape, partial(made.tensor, name)) for name, spec in made.specs.items()]
    config.save_pretrained(folder)
    with atomic_file(folder / SINGLE) as out:
        write_safetensors(out, plans)
