"""A published version in files, by the parameters of its stock class, which holds all experts of a layer together."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from moerge.models.config import published_config, read_config
from moerge.models.families import Family, family_of, published_family
from moerge.models.reader import Checkpoint
from moerge.models.weights import own_copy


@dataclass(frozen=True)
class PublishedWeights:
    """The tensors of a published version, in files.

    Attributes:
        config: of the version.
        checkpoint: of its folder.
        fused: a parameter's name -> of each expert, the tensors whose rows it has one after another.
        plain: any other parameter's name -> its tensor.
    """

    config: PretrainedConfig
    checkpoint: Checkpoint
    fused: Mapping[str, list[list[str]]]
    plain: Mapping[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.plain or name in self.fused

    def layer(self, number: int) -> list[str]:
        """The names of a layer's parameters."""
        start = f"model.layers.{number}."
        return [name for names in (self.plain, self.fused) for name in names if name.startswith(start)]

    def shape(self, name: str) -> tuple[int, ...]:
        """A parameter's shape."""
        if name in self.plain:
            return self.checkpoint.specs[self.plain[name]].shape
        experts = self.fused[name]
        rows = sum(self.checkpoint.specs[part].shape[0] for part in experts[0])
        return len(experts), rows, self.checkpoint.specs[experts[0][0]].shape[1]

    def tensor(self, name: str) -> Tensor:
        """One parameter, in its stored dtype."""
        if name in self.plain:
            return self.checkpoint.tensor(self.plain[name])
        return own_copy(self, name, self.checkpoint.specs[self.fused[name][0][0]].dtype)

    def copy(self, name: str, out: Tensor) -> None:
        """Reads one parameter into `out`, contiguous and of its shape, in the dtype of `out`."""
        if name in self.plain:
            self.checkpoint.copy(self.plain[name], out)
            return
        for expert, parts in zip(out, self.fused[name], strict=True):
            start = 0
            for part in parts:
                rows = self.checkpoint.specs[part].shape[0]
                self.checkpoint.copy(part, expert[start : start + rows])
                start += rows


def published_weights(version: Path) -> PublishedWeights:
    """The version in a folder.

    Raises:
        CheckpointError: a file is missing or damaged.
        IncompatibleExpertError: it is not of a published class.
    """
    config, checkpoint = read_config(version), Checkpoint(version)
    family = published_family(config)
    fused = dict[str, list[list[str]]]()
    for layer in range(config.num_hidden_layers):
        experts = _experts(family, int(getattr(config, family.experts)), layer)
        place = family.router_module.format(layer=layer).rpartition(".")[0]
        fused[f"{place}.experts.gate_up_proj"] = [names[:-1] for names in experts]
        fused[f"{place}.experts.down_proj"] = [names[-1:] for names in experts]
    parts = {part for experts in fused.values() for names in experts for part in names}
    layers = range(config.num_hidden_layers)
    routers = {family.router.format(layer=n): f"{family.router_module.format(layer=n)}.weight" for n in layers}
    plain = {routers.get(name, name): name for name in checkpoint.specs if name not in parts}
    return PublishedWeights(config, checkpoint, fused, plain)


def _experts(family: Family, count: int, layer: int) -> list[list[str]]:
    """The published names of each expert's tensors in a layer; the last matrix comes last."""
    patterns = [name for names in family.mlp.values() for name in names]
    return [[name.format(layer=layer, expert=number) for name in patterns] for number in range(count)]


def expected_config(expert: PretrainedConfig, experts: int, top_k: int) -> PretrainedConfig:
    """The config of a version of so many experts like this one, before its files are here."""
    fields = published_config(family_of(expert), expert, experts, top_k, "float32", int(expert.vocab_size), False)
    config: PretrainedConfig = AutoConfig.for_model(**fields)
    return config
