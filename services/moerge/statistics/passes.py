"""The two passes over an owner's documents, as data that is sent to their processes."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.batches import Batch
from moerge.models.bounds import input_gain_names
from moerge.models.config import read_config
from moerge.models.dense import domain_model, expert_model, place
from moerge.models.families import family_of
from moerge.models.reader import Checkpoint
from moerge.statistics.accumulate import ShardSums, shard_sums, trunk_shard_sums
from moerge.statistics.packed_attention import PACKED

Compute = Callable[[Iterable[Batch], int], ShardSums]
"""(micro-batches of a shard, documents in it) -> its sums."""


@dataclass(frozen=True)
class RouterPass:
    """Features' grams and sums under a trunk, with the domain's own MLPs.

    `precision` is the model's dtype; `device` is a torch device; `layers` are the consecutive layers to sum, by
    default all.
    """

    expert: Path
    trunk: Path
    exponents: Sequence[int]
    precision: str = "float32"
    device: str = "cpu"
    layers: range | None = None

    def load(self) -> Compute:
        return self.loaded(1)[0]

    def loaded(self, copies: int) -> list[Compute]:
        """The pass for each of several threads; they share one model's weights."""
        model, gains = domain_model(self.expert, self.trunk, getattr(torch, self.precision))
        _place(model, self.device)

        def compute(model: PreTrainedModel) -> Compute:
            return lambda batches, documents: shard_sums(model, gains, self.exponents, batches, documents, self.layers)

        return [compute(each) for each in _shared(model, copies)]


@dataclass(frozen=True)
class TrunkPass:
    """Grams of the inputs of the expert's attention and head, and counts of tokens."""

    expert: Path
    exponents: Sequence[int]
    precision: str = "float32"
    device: str = "cpu"
    layers: range | None = None

    def load(self) -> Compute:
        return self.loaded(1)[0]

    def loaded(self, copies: int) -> list[Compute]:
        """As in `RouterPass`."""
        config, own = read_config(self.expert), Checkpoint(self.expert)
        family = family_of(config)
        gains = [None if name is None else own.tensor(name) for name in input_gain_names(family, config)]
        model = expert_model(self.expert, getattr(torch, self.precision))
        _place(model, self.device)

        def compute(model: PreTrainedModel) -> Compute:
            return lambda batches, documents: trunk_shard_sums(
                model, family, gains, self.exponents, batches, documents, self.layers
            )

        return [compute(each) for each in _shared(model, copies)]


def _shared(model: PreTrainedModel, copies: int) -> list[PreTrainedModel]:
    """The model and copies that share its tensors, because hooks belong to a module."""
    tensors = [*model.parameters(), *model.buffers()]
    return [model, *(deepcopy(model, {id(tensor): tensor for tensor in tensors}) for _ in range(copies - 1))]


def _place(model: PreTrainedModel, device: str) -> None:
    """Moves the model to its device; on a GPU, in bfloat16, it reads documents without padding."""
    place(model, device)
    if device == "cuda" and model.dtype is torch.bfloat16:
        model.set_attn_implementation(PACKED)


def in_groups(work: RouterPass | TrunkPass, layers: int, groups: int) -> list[RouterPass | TrunkPass]:
    """The pass split into groups of consecutive layers, in order; the last needs the most memory.

    Raises:
        MoergeError: there are fewer layers.
    """
    if groups > layers:
        found = f"{groups} groups for {layers} layers"
        raise MoergeError(found, where="--layer-groups", todo=f"choose at most {layers}")
    if groups == 1:
        return [work]
    ends = [layers * number // groups for number in range(groups + 1)]
    return [replace(work, layers=range(start, stop)) for start, stop in pairwise(ends)]


def described(passes: Sequence[RouterPass | TrunkPass]) -> str:
    """The layer groups of passes, such as "2 layer groups: 0-15, 16-31"."""
    groups = [each.layers for each in passes if each.layers is not None]
    if not groups:
        return "1 layer group"
    return f"{len(groups)} layer groups: {', '.join(map(named, groups))}"


def named(layers: range) -> str:
    """The first and the last layer, such as "16-31"."""
    return f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])
