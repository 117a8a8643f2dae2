"""The models that statistics come from: a dense expert, or the trunk with its MLPs (DUME figure 1, step 2)."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from moerge.architectures.config import read_config, trunk_config
from moerge.architectures.families import EMBEDDING, HEAD, family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.errors import IncompatibleExpertError
from moerge.statistics.bounds import feature_gains
from moerge.trunk.context import without_context
from moerge.trunk.merge import trunk_names
from moerge.trunk.regmean import ModuleGrams
from moerge_proto.statistics_file import StatisticsFile


def domain_model(expert: Path, trunk: Path, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, Tensor]:
    """Builds the trunk with the expert's MLPs, in evaluation mode.

    Args:
        expert: the domain's own dense checkpoint folder.
        trunk: the trunk's safetensors file, in the dense family's names.
        dtype: what the model computes in.

    Returns:
        The model, and the gains [L, H] float32 of the norms that make each layer's feature.
    """
    config = read_config(expert)
    family = family_of(config)
    own, merged = Checkpoint(expert), Checkpoint(trunk)
    state = {name: merged.tensor(name).to(dtype) for name in merged.specs}
    state |= {name: own.tensor(name).to(dtype) for name in family.dense_mlp_names(config.num_hidden_layers)}
    return dense_model(config, state, dtype), feature_gains(merged, family, config)


def expert_model(expert: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The dense expert itself, in evaluation mode."""
    config, own = read_config(expert), Checkpoint(expert)
    names = trunk_names(own, family_of(config), config.num_hidden_layers)
    names += family_of(config).dense_mlp_names(config.num_hidden_layers)
    return dense_model(config, {name: own.tensor(name).to(dtype) for name in names}, dtype)


def dense_model(config: PretrainedConfig, state: dict[str, Tensor], dtype: torch.dtype) -> PreTrainedModel:
    """The dense model with these tensors, in evaluation mode; its head is tied if they hold none."""
    own = trunk_config(config, {name: tensor.shape for name, tensor in state.items()})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(own, dtype=dtype)
    model.load_state_dict(state | {HEAD: state.get(HEAD, state[EMBEDDING])})
    model.eval()
    return model


def place(model: PreTrainedModel, device: str) -> None:
    """Moves the model to a torch device."""
    model.to(torch.device(device))  # type: ignore[arg-type]  # its stub expects another self


def require_near(expert: Path, trunk: Path, limit: float, statistics: Path | None = None) -> float:
    """Requires that no trunk tensor strays from the expert's own by more than `limit` of its norm; returns the most.

    With the owner's own trunk contribution at `statistics`, linear modules are compared by what they answer on its
    text, ||(W - W_d) x|| by ||W_d x||. Rows that only other experts' vocabularies have are not compared, nor the heads
    of one further group, which may only attend by distance (`moerge.trunk.context`).

    Raises:
        IncompatibleExpertError: names the tensor: it is missing, of another shape, not finite or too far.
    """
    config = read_config(expert)
    family, own, merged = family_of(config), Checkpoint(expert), Checkpoint(trunk)
    names = trunk_names(own, family, config.num_hidden_layers)
    if missing := [name for name in names if name not in merged.specs]:
        raise _unlike(missing[0])
    with ExitStack() as stack:
        grams = None
        if statistics is not None:
            file = stack.enter_context(StatisticsFile(statistics))
            grams = ModuleGrams(own, file, family, config)
        return _furthest(own, without_context(merged, family, config), names, limit, grams)


def _unlike(name: str) -> IncompatibleExpertError:
    todo = "ask the operator to merge a trunk that your expert is in"
    return IncompatibleExpertError("the trunk lacks it, or has another shape", where=name, todo=todo)


def _furthest(
    own: Checkpoint, merged: Callable[[str], Tensor], names: Sequence[str], limit: float, grams: ModuleGrams | None
) -> float:
    furthest = 0.0
    for name in names:
        found, expected = merged(name), own.specs[name].shape
        rows = name in (EMBEDDING, HEAD) and found.shape[0] >= expected[0]
        if found.shape[1:] != expected[1:] or (found.shape[0] != expected[0] and not rows):
            raise _unlike(name)
        before = own.tensor(name).double()
        after = found[: expected[0]].double()
        gram = grams.gram(name) if grams is not None and name in grams else None
        distance = _size(after - before, gram) / max(_size(before, gram), 1e-12)
        if not distance <= limit:
            raise IncompatibleExpertError(
                f"the trunk strays by {distance:.3g} of this tensor's norm; the limit is {limit:g}",
                where=name,
                todo="ask the operator which experts the trunk was merged from, and how; with --trunk-contribution"
                " answers are compared instead of weights; or raise max_stray in worker.toml's [policy]",
            )
        furthest = max(furthest, distance)
    return furthest


def _size(tensor: Tensor, gram: Tensor | None) -> float:
    """The tensor's norm, or, weighed by a gram of inputs, its outputs'."""
    if gram is None:
        return float(tensor.norm())
    return float(((tensor @ gram) * tensor).sum().clamp_min(0).sqrt())
