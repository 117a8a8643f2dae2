"""Dense models in files and in memory: an expert, or the body with its MLPs (DUME figure 1, step 2)."""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from moerge.errors import CheckpointError
from moerge.models.bounds import feature_gains
from moerge.models.config import dense_config
from moerge.models.dense_files import Dense
from moerge.models.families.common import layer_starts
from moerge.models.families.family import EMBEDDING, HEAD
from moerge.models.families.registry import family_of
from moerge.models.reader import Checkpoint, Tensors, require_tensors
from moerge.models.stored import TensorSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # it takes 1.5 s, and a process without a model never needs it


def mlp_names(expert: Dense) -> list[str]:
    """The MLPs' tensors of a dense model, layer by layer."""
    return expert.family.dense_mlp_names(expert.config)


def body_names(expert: Dense) -> list[str]:
    """The tensors of a dense model's body, sorted: those outside MLPs and head."""
    return sorted(expert.checkpoint.specs.keys() - {*mlp_names(expert), *expert.family.head_names})


def part_names(expert: Dense, *, own_head: bool = True) -> list[str]:
    """The tensors of an expert's parts: its MLPs and its head, which is never tied, unless that is the seed's."""
    return [*mlp_names(expert), *(expert.family.head_names if own_head else ())]


def require_parts(expert: Dense, *, own_head: bool = True) -> None:
    """Requires exactly the tensors of an expert's parts; CheckpointError names the first other one."""
    require_tensors(expert.checkpoint, expert.config, part_names(expert, own_head=own_head))


def has_head(parts: Dense) -> bool:
    """Tell whether an expert or its parts have a head of their own, beside MLPs."""
    return parts.family.final_norm in parts.checkpoint.specs


def stored_name(checkpoint: Tensors, name: str) -> str:
    """The name of a model's tensor in its checkpoint; a tied head is the embedding."""
    return EMBEDDING if name == HEAD and HEAD not in checkpoint.specs else name


@dataclass(frozen=True)
class DenseWeights:
    """The tensors of a dense model: name -> checkpoint and name there; without a head, it is tied."""

    config: PretrainedConfig
    places: Mapping[str, tuple[Checkpoint, str]]

    @property
    def final_norm(self) -> str:
        return family_of(self.config).final_norm

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def tensor(self, name: str) -> Tensor:
        checkpoint, stored = self.places[name]
        return checkpoint.tensor(stored)

    def copy(self, name: str, out: Tensor) -> None:
        checkpoint, stored = self.places[name]
        checkpoint.copy(stored, out)

    def spec(self, name: str) -> TensorSpec:
        checkpoint, stored = self.places[name]
        return checkpoint.specs[stored]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.spec(name).shape

    def layer(self, number: int) -> list[str]:
        starts = layer_starts(self.config, number)
        return [name for name in self.places if name.startswith(starts)]

    def model(self, dtype: torch.dtype = torch.float32) -> "PreTrainedModel":
        """The whole model in memory, in evaluation mode."""
        return _filled(self.config, self.places, self.tensor, dtype)


def domain_weights(expert: Dense, body: Dense) -> DenseWeights:
    """The body with the expert's MLPs and own head."""
    places = _places(body.checkpoint, body.checkpoint.specs)
    places |= _places(expert.checkpoint, [*mlp_names(expert), expert.family.final_norm])
    return _weights(expert.config, {**places, HEAD: (expert.checkpoint, stored_name(expert.checkpoint, HEAD))})


def expert_weights(expert: Dense) -> DenseWeights:
    """The dense expert."""
    mlps = mlp_names(expert)
    names = [*sorted(expert.checkpoint.specs.keys() - set(mlps)), *mlps]
    return _weights(expert.config, _places(expert.checkpoint, names))


def _places(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, tuple[Checkpoint, str]]:
    return {name: (checkpoint, name) for name in names}


def _weights(config: PretrainedConfig, places: Mapping[str, tuple[Checkpoint, str]]) -> DenseWeights:
    shapes = {name: checkpoint.specs[stored].shape for name, (checkpoint, stored) in places.items()}
    return DenseWeights(dense_config(config, shapes), places)


def domain_model(expert: Dense, body: Dense, dtype: torch.dtype = torch.float32) -> "tuple[PreTrainedModel, Tensor]":
    """The body with the expert's MLPs and head, in evaluation mode, and the gains [L, H] float32 before the MLPs."""
    return domain_weights(expert, body).model(dtype), feature_gains(body)


def expert_model(expert: Dense, dtype: torch.dtype = torch.float32) -> "PreTrainedModel":
    """The dense expert, in evaluation mode."""
    return expert_weights(expert).model(dtype)


def dense_model(config: PretrainedConfig, state: Mapping[str, Tensor], dtype: torch.dtype) -> "PreTrainedModel":
    """The dense model with copies of these tensors, in evaluation mode; without a head tensor, its head is tied."""
    shapes = {name: tensor.shape for name, tensor in state.items()}
    return _filled(dense_config(config, shapes), state, state.__getitem__, dtype)


def empty_model(config: PretrainedConfig, dtype: torch.dtype) -> "PreTrainedModel":
    """The dense model in evaluation mode, with buffers, but without memory for its parameters."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(copy(config), dtype=dtype)
    if (rope := rope_of(model)) is not None:
        setattr(model.model, rope, type(model.model.get_submodule(rope))(config=config))  # its buffers follow from it
    for module in model.model.children():
        if (scale := getattr(module, "scalar_embed_scale", None)) is not None:
            module.embed_scale = torch.tensor(scale)
    model.eval()
    return model


def rope_of(model: "PreTrainedModel") -> str | None:
    """The name of the decoder's rotary embedding, or None without one."""
    modules = model.model.named_children()
    return next((name for name, module in modules if type(module).__name__.endswith("RotaryEmbedding")), None)


def assign(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Makes a tensor the parameter of that name."""
    from transformers import PreTrainedModel

    module, _, last = name.rpartition(".")
    is_embedding = isinstance(model, PreTrainedModel) and name == EMBEDDING
    owner = model.get_input_embeddings() if is_embedding else model.get_submodule(module)  # type: ignore[operator]
    setattr(owner, last, nn.Parameter(tensor))


def _filled(
    config: PretrainedConfig, names: Iterable[str], tensor: Callable[[str], Tensor], dtype: torch.dtype
) -> "PreTrainedModel":
    model = empty_model(config, dtype)
    for name in names:
        assign(model, name, tensor(name).to(dtype, copy=True))  # products of unaligned, mapped memory may differ
    if model.lm_head.weight.is_meta:
        model.lm_head.weight = model.get_input_embeddings().weight
    require_all(model)
    return model


def require_all(module: nn.Module, prefix: str = "") -> None:
    """Requires that all parameters and buffers are assigned; CheckpointError names a missing one, after `prefix`."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    if missing := [name for name, tensor in tensors if tensor.is_meta]:
        where = prefix + missing[0]
        raise CheckpointError("tensor not found", where=where, todo="save the model again with save_pretrained")


def place(model: "PreTrainedModel", device: str) -> None:
    model.to(torch.device(device))  # type: ignore[arg-type]  # its stub expects another self
