"""The weights of a folder's experts along a text: of routers, or of BTS's gates."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import JetMoeForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.jetmoe.modeling_jetmoe import JetMoeTopKGating

from moerge.errors import MoergeError
from moerge.models.families.registry import host_of
from moerge.scoring.perplexity import load
from moerge.scoring.routers import routers
from moerge_lab.mixtures.bam import Bam, Shares
from moerge_lab.mixtures.base import observed
from moerge_lab.mixtures.bts import Bts, BtsConfig, places
from moerge_lab.mixtures.heterogeneous import Heterogeneous, HeterogeneousConfig
from moerge_lab.routing.text import encoded, reading
from moerge_proto.records import RECORD_FILE, TunedMixture, TunedModel, read_record
from moerge_proto.versions import Lineage

_LONGEST_CONTEXT = 2048  # tokens; it bounds the activations
_PARTS = {".self_att": "attention", ".mlp.": "MLPs"}
"""A part of the names of a BAM layer's modules, in both classes -> their name in a picture."""

_Observing = Callable[[PreTrainedModel], AbstractContextManager[list[tuple[str, Tensor]]]]


@dataclass(frozen=True)
class Along:
    """The weights of experts along a text, cut at its tokens.

    Attributes:
        members: names of the experts.
        parts: name of a part of the model -> the weights of its experts, [n, D], which sum to 1 for each piece.
    """

    members: Sequence[str]
    pieces: Sequence[str]
    parts: Mapping[str, Tensor]

    @property
    def mean(self) -> Tensor:
        """The weights averaged over the parts, [n, D]."""
        return torch.stack([*self.parts.values()]).mean(0)


def along(folder: Path, text: str, layer: int | None = None) -> Along:
    """The weights of the experts of a version's or mixture's folder along a text.

    Args:
        layer: one layer, from 0; None: the mean over the layers, or the last experts-into-hub stitch layer of BTS.
    """
    ids, pieces, rows = encoded(folder, text)
    model = load(folder)
    parts = next((item for kind, item in _KINDS.items() if isinstance(model, kind)), _published)(model, ids, layer)
    members = getattr(model.config, "members", None) or _recorded(folder)
    return Along(members, pieces, {part: weights[rows] for part, weights in parts.items()})


def _recorded(folder: Path) -> Sequence[str]:
    record = read_record(folder)
    if isinstance(record, TunedMixture):
        return [member.name for member in record.members]
    if not isinstance(record, Lineage | TunedModel):
        todo = "name a folder of moerge merge, pull or tune"
        raise MoergeError("not found", where=str(folder / RECORD_FILE), todo=todo)
    return record.domains


def _published(model: PreTrainedModel, ids: Sequence[int], layer: int | None) -> dict[str, Tensor]:
    host_of(model.config)
    logits = routed(model, ids, _context(model.config))
    return {f"routers, {_said(layer)}": _chosen(logits.softmax(-1), layer)}


@torch.inference_mode()
def routed(model: PreTrainedModel, ids: Sequence[int], context: int) -> Tensor:
    """The routers' logits [L, n, D], float32, for a text of n tokens, see `reading`."""
    logits: list[Tensor] = []
    for window, new in reading(ids, context):
        with observed(model, type(routers(model)[0]), itemgetter(0)) as seen:
            model.base_model(input_ids=window, use_cache=False)
        logits.append(torch.stack([item[new].float() for _, item in seen]))
    return torch.cat(logits, dim=1)


def _context(*configs: PretrainedConfig) -> int:
    return min(*(int(config.max_position_embeddings) for config in configs), _LONGEST_CONTEXT)


@torch.inference_mode()
def _seen(
    model: PreTrainedModel, ids: Sequence[int], context: int, observing: _Observing = observed
) -> dict[str, Tensor]:
    """Module -> its weights of the members, [n, D] or [n, D, H]."""
    result = defaultdict[str, list[Tensor]](list)
    for window, new in reading(ids, context):
        with observing(model) as seen:
            model(input_ids=window, use_cache=False)
        for name, weights in seen:
            result[name].append(weights[0, new].float())
    return {name: torch.cat(parts) for name, parts in result.items()}


def _gates(model: Bts, ids: Sequence[int], layer: int | None) -> dict[str, Tensor]:
    """The gates of an experts-into-hub stitch layer, averaged over the hidden dimensions (BTS section 4.3)."""
    config = cast(BtsConfig, model.config)
    behind = places(config.dense_config.num_hidden_layers, config.stitches, alternating=config.alternating)
    into_hub = [number for number, item in behind.items() if item]
    chosen = into_hub[-1] if layer is None else layer
    if chosen not in into_hub:
        todo = f"use one of: {', '.join(map(str, into_hub))}"
        raise MoergeError(f"layer {chosen} has no experts-into-hub stitch layer", where="`layer`", todo=todo)
    seen = _seen(model, ids, _context(config.dense_config))
    [weights] = [item for name, item in seen.items() if f".layers.{chosen}." in name]
    return {f"gates of the stitch layer behind layer {chosen}": weights.mean(-1)}


def _bam(model: Bam, ids: Sequence[int], layer: int | None) -> dict[str, Tensor]:
    return _by_layer(_seen(model, ids, _context(model.stock.config)), layer)


def _jetmoe(model: JetMoeForCausalLM, ids: Sequence[int], layer: int | None) -> dict[str, Tensor]:
    shares = Shares(model.config.num_experts_per_tok)
    observing = partial(observed, kind=JetMoeTopKGating, weights=lambda output: shares(output[-1])[None])
    return _by_layer(_seen(model, ids, _context(model.config), observing), layer)


def _by_layer(seen: Mapping[str, Tensor], layer: int | None) -> dict[str, Tensor]:
    """The routers of attention experts and of MLPs."""
    every = {part: [item for name, item in seen.items() if module in name] for module, part in _PARTS.items()}
    return {f"routers of {part}, {_said(layer)}": _chosen(torch.stack(item), layer) for part, item in every.items()}


def _sequence_router(model: Heterogeneous, ids: Sequence[int], layer: int | None) -> dict[str, Tensor]:
    if layer is not None:
        raise MoergeError("the model has one router for all layers", where="`layer`", todo="omit it")
    [weights] = _seen(model, ids, _context(*cast(HeterogeneousConfig, model.config).dense_configs)).values()
    return {"router on the mean embedding of the tokens so far": weights}


_KINDS: Mapping[type[PreTrainedModel], Callable[[Any, Sequence[int], int | None], dict[str, Tensor]]] = {
    Bts: _gates,
    Bam: _bam,
    JetMoeForCausalLM: _jetmoe,
    Heterogeneous: _sequence_router,
}
"""Class of a mixture -> its weights; all other models are versions."""


def _chosen(weights: Tensor, layer: int | None) -> Tensor:
    """One layer of weights [L, n, D], or their mean."""
    if layer is None:
        return weights.mean(0)
    if layer >= len(weights):
        raise MoergeError(f"no layer {layer}", where="`layer`", todo=f"give a layer from 0 to {len(weights) - 1}")
    return weights[layer]


def _said(layer: int | None) -> str:
    return "mean over the layers" if layer is None else f"layer {layer}"
