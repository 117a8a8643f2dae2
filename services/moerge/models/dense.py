"""The models of the statistics passes: a dense expert, or the trunk with its MLPs (DUME figure 1, step 2)."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from moerge.models.bounds import feature_gains
from moerge.models.config import read_config, trunk_config
from moerge.models.families import EMBEDDING, HEAD, Family, family_of
from moerge.models.reader import Checkpoint


def trunk_names(checkpoint: Checkpoint, family: Family, layers: int) -> list[str]:
    """The non-MLP tensors of a dense checkpoint, sorted."""
    mlp = set(family.dense_mlp_names(layers))
    return sorted(name for name in checkpoint.specs if name not in mlp)


def domain_model(expert: Path, trunk: Path, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, Tensor]:
    """Builds the trunk with the expert's MLPs, in evaluation mode.

    Args:
        expert: the domain's own dense checkpoint folder.
        trunk: the trunk's safetensors file, in the dense family's names.
        dtype: of the computation.

    Returns:
        The model, and the gains [L, H] float32 of the norms before the MLPs.
    """
    config = read_config(expert)
    family = family_of(config)
    own, merged = Checkpoint(expert), Checkpoint(trunk)
    state = {name: merged.tensor(name).to(dtype) for name in merged.specs}
    state |= {name: own.tensor(name).to(dtype) for name in family.dense_mlp_names(config.num_hidden_layers)}
    return dense_model(config, state, dtype), feature_gains(merged, family, config)


def expert_model(expert: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The dense expert, in evaluation mode."""
    config, own = read_config(expert), Checkpoint(expert)
    names = trunk_names(own, family_of(config), config.num_hidden_layers)
    names += family_of(config).dense_mlp_names(config.num_hidden_layers)
    return dense_model(config, {name: own.tensor(name).to(dtype) for name in names}, dtype)


def dense_model(config: PretrainedConfig, state: dict[str, Tensor], dtype: torch.dtype) -> PreTrainedModel:
    """The dense model with these tensors, in evaluation mode; without a head tensor, its head is tied."""
    own = trunk_config(config, {name: tensor.shape for name, tensor in state.items()})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(own, dtype=dtype)
    model.load_state_dict(state | {HEAD: state.get(HEAD, state[EMBEDDING])})
    model.eval()
    return model


def place(model: PreTrainedModel, device: str) -> None:
    """Moves the model to a torch device."""
    model.to(torch.device(device))  # type: ignore[arg-type]  # its stub expects another self


def active_parameters(model: PreTrainedModel, share: Callable[[str], float] = lambda name: 1) -> float:
    """The number of parameters that a token is multiplied by, with the head and without the embedding.

    Args:
        share: parameter's name -> the share of its elements that count for a token.
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, head = (each.get_parameter("weight") for each in ends)
    counted = ((name, each) for name, each in model.named_parameters() if each is not embedding or each is head)
    return float(sum(share(name) * parameter.numel() for name, parameter in counted))
