"""A published version in files, by the parameters of its stock class, which fuses the experts of a layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from moerge.models.config import published_config, read_config
from moerge.models.families.common import layer_starts
from moerge.models.families.family import Matrix, mlp_layers
from moerge.models.families.registry import family_of, host_of
from moerge.models.reader import Checkpoint
from moerge.models.weights import own_copy

_FUSED: dict[str, tuple[Matrix, ...]] = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}
_UNGATED: dict[str, tuple[Matrix, ...]] = {"up_proj": ("up",), "down_proj": ("down",)}
"""Parameters of the module of a layer's experts, and the matrices whose rows they have."""


@dataclass(frozen=True)
class PublishedWeights:
    """The tensors of a published version, in files.

    Attributes:
        fused: a parameter's name -> per expert, the tensors whose rows it concatenates.
        plain: any other parameter's name -> its tensor.
    """

    config: PretrainedConfig
    checkpoint: Checkpoint
    fused: Mapping[str, list[list[str]]]
    plain: Mapping[str, str]

    @property
    def final_norm(self) -> str:
        return host_of(self.config).final_norm

    def __contains__(self, name: str) -> bool:
        return name in self.plain or name in self.fused

    def layer(self, number: int) -> list[str]:
        starts = layer_starts(self.config, number)
        return [name for names in (self.plain, self.fused) for name in names if name.startswith(starts)]

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self.plain:
            return self.checkpoint.specs[self.plain[name]].shape
        experts = self.fused[name]
        rows = sum(self.checkpoint.specs[part].shape[0] for part in experts[0])
        return len(experts), rows, self.checkpoint.specs[experts[0][0]].shape[1]

    def tensor(self, name: str) -> Tensor:
        if name in self.plain:
            return self.checkpoint.tensor(self.plain[name])
        return own_copy(self, name, self.checkpoint.specs[self.fused[name][0][0]].dtype)

    def copy(self, name: str, out: Tensor) -> None:
        if name in self.plain:
            self.checkpoint.copy(self.plain[name], out)
            return
        for expert, parts in zip(out, self.fused[name], strict=True):
            start = 0
            for part in parts:
                rows = self.checkpoint.specs[part].shape[0]
                self.checkpoint.copy(part, expert[start : start + rows])
                start += rows


def published_weights(version: Path, checkpoint: Checkpoint | None = None) -> PublishedWeights:
    """The version in a folder; CheckpointError or IncompatibleExpertError if it isn't one.

    `checkpoint`: its weights, by default those in the folder.
    """
    config, checkpoint = read_config(version), checkpoint or Checkpoint(version)
    host = host_of(config)
    fused, renamed = dict[str, list[list[str]]](), dict[str, str]()
    slots = range(host.slots(config))
    for layer in mlp_layers(config):
        module = host.router_module.format(layer=layer)
        place = module.rpartition(".")[0]
        renamed[host.router.format(layer=layer)] = f"{module}.{host.router_weight}"
        for name, matrices in (_FUSED if "gate" in host.experts else _UNGATED).items():
            experts = [[host.experts[matrix].format(layer=layer, expert=slot) for matrix in matrices] for slot in slots]
            if host.fused:
                renamed[experts[0][0]] = f"{place}.experts.{name}"
            else:
                fused[f"{place}.experts.{name}"] = experts
    parts = {part for experts in fused.values() for names in experts for part in names}
    plain = {renamed.get(name, name): name for name in checkpoint.specs if name not in parts}
    return PublishedWeights(config, checkpoint, fused, plain)


def expected_config(expert: PretrainedConfig, experts: int, top_k: int) -> PretrainedConfig:
    """The config of a version of experts like this one, without the version's files."""
    fields = published_config(family_of(expert), expert, experts, top_k, "float32", int(expert.vocab_size), False)
    config: PretrainedConfig = AutoConfig.for_model(**fields)
    return config
