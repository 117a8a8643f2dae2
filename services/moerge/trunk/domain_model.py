"""The model that a domain's features come from: the trunk with the domain's own MLPs (DUME figure 1, step 2)."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from moerge.architectures.config import read_config
from moerge.architectures.families import family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.errors import IncompatibleExpertError
from moerge.trunk.merge import trunk_names


def domain_model(expert: Path, trunk: Path) -> tuple[PreTrainedModel, Tensor]:
    """Builds the dense model in float32, in evaluation mode.

    Args:
        expert: the domain's own dense checkpoint folder.
        trunk: the trunk's safetensors file, in the dense family's names.

    Returns:
        The model, and the gains [L, H] float32 of the norms that make each layer's feature.
    """
    config = read_config(expert)
    family = family_of(config)
    own, merged = Checkpoint(expert), Checkpoint(trunk)
    state = {name: merged.tensor(name).float() for name in merged.specs}
    state |= {name: own.tensor(name).float() for name in family.dense_mlp_names(config.num_hidden_layers)}
    gains = torch.stack([state[family.gain.format(layer=layer)] for layer in range(config.num_hidden_layers)])
    return dense_model(config, state), gains


def dense_model(config: PretrainedConfig, state: dict[str, Tensor]) -> PreTrainedModel:
    """The dense model with these tensors, in float32 and evaluation mode; its head is tied if they hold none."""
    config.tie_word_embeddings = "lm_head.weight" not in state
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(state | {"lm_head.weight": state.get("lm_head.weight", state["model.embed_tokens.weight"])})
    model.eval()
    return model


def require_near(expert: Path, trunk: Path, limit: float) -> float:
    """Requires that no trunk tensor strays from the expert's own by more than `limit` of its norm; returns the most.

    Raises:
        IncompatibleExpertError: names the tensor: it is missing, of another shape, not finite or too far.
    """
    config = read_config(expert)
    own, merged = Checkpoint(expert), Checkpoint(trunk)
    furthest = 0.0
    for name in trunk_names(own, family_of(config), config.num_hidden_layers):
        if name not in merged.specs or merged.specs[name].shape != own.specs[name].shape:
            raise IncompatibleExpertError("the trunk lacks it, or has another shape", where=name)
        before = own.tensor(name).double()
        distance = float((merged.tensor(name).double() - before).norm() / before.norm().clamp_min(1e-12))
        if not distance <= limit:
            raise IncompatibleExpertError(
                f"the trunk strays by {distance:.3g} of this tensor's norm; the limit is {limit:g}",
                where=name,
                todo="ask the operator which experts the trunk was merged from, or raise --max-stray",
            )
        furthest = max(furthest, distance)
    return furthest
