"""The weights of a folder's experts along a text: of a version's routers, BAM's routers, or BTS's gates."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from moerge.errors import MoergeError
from moerge.mixtures.bam import Bam
from moerge.mixtures.base import Mixture, MixtureConfig, observed
from moerge.mixtures.bts import Bts, BtsConfig, places
from moerge.models.families import published_family
from moerge.scoring.perplexity import load
from moerge.scoring.route_job import LONGEST_CONTEXT
from moerge.scoring.route_text import encoded, reading, routed
from moerge_proto.tuned import TunedMixture, tuned
from moerge_proto.versions import Lineage

_PARTS = {"self_attn": "attention", "mlp": "MLPs"}
"""Module of a BAM layer -> its name in a picture."""


@dataclass(frozen=True)
class Along:
    """The weights of experts along a text.

    Attributes:
        members: names of the experts.
        pieces: the text, cut at its tokens.
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
    """The weights of the experts in a folder along a text.

    Args:
        folder: a merged, pulled or tuned version, or a mixture.
        layer: one layer, from 0; None: the mean over the layers, or the last experts-into-hub stitch layer of BTS.

    Raises:
        MoergeError: the folder has another model, or there is no such layer.
    """
    ids, pieces, rows = encoded(folder, text, str(folder), "save the tokenizer with tokenizer.json in the folder")
    model = load(folder)
    if isinstance(model, Mixture):
        members: Sequence[str] = _config(model).members
        found = _gates(model, ids, layer) if isinstance(model, Bts) else _routers(model, ids, layer)
    else:
        published_family(model.config)
        members = _domains(folder)
        logits, _ = routed(model, ids, _context(model.config.max_position_embeddings))
        found = {f"routers, {_said(layer)}": _chosen(logits.softmax(-1), layer)}
    return Along(members, pieces, {part: weights[rows] for part, weights in found.items()})


def _config(model: Mixture) -> MixtureConfig:
    config: MixtureConfig = model.config  # type: ignore[assignment]
    return config


def _context(longest: int) -> int:
    return min(int(longest), LONGEST_CONTEXT)


def _domains(folder: Path) -> Sequence[str]:
    """The domains of a version, or of a tuned one, in slot order."""
    path = folder / "moerge.json"
    if not path.is_file():
        todo = "name a folder of moerge merge, pull or tune"
        raise MoergeError("not found", where=str(path), todo=todo)
    content = path.read_bytes()
    made = tuned(content)
    lineage = Lineage.model_validate_json(content) if made is None or isinstance(made, TunedMixture) else made.parent
    return lineage.domains


@torch.inference_mode()
def _seen(model: Mixture, ids: Sequence[int]) -> dict[str, Tensor]:
    """Module -> its weights of the members, [n, D] or [n, D, H]."""
    found = defaultdict[str, list[Tensor]](list)
    for window, new in reading(ids, _context(_config(model).dense_config.max_position_embeddings)):
        with observed(model) as seen:
            model(input_ids=window, use_cache=False)
        for name, weights in seen:
            found[name].append(weights[0, new].float())
    return {name: torch.cat(parts) for name, parts in found.items()}


def _gates(model: Bts, ids: Sequence[int], layer: int | None) -> dict[str, Tensor]:
    """The gates of an experts-into-hub stitch layer, averaged over the hidden dimensions (BTS section 4.3)."""
    config = _config(model)
    assert isinstance(config, BtsConfig)  # noqa: S101
    behind = places(config.dense_config.num_hidden_layers, config.stitches, alternating=config.alternating)
    into_hub = [number for number, each in behind.items() if each]
    chosen = into_hub[-1] if layer is None else layer
    if chosen not in into_hub:
        todo = f"use one of: {', '.join(map(str, into_hub))}"
        raise MoergeError(f"layer {chosen} has no experts-into-hub stitch layer", where="--layer", todo=todo)
    [weights] = [each for name, each in _seen(model, ids).items() if _layer(name) == chosen]
    return {f"gates of the stitch layer behind layer {chosen}": weights.mean(-1)}


def _routers(model: Mixture, ids: Sequence[int], layer: int | None) -> dict[str, Tensor]:
    """BAM's routers of attention experts and of MLPs."""
    assert isinstance(model, Bam)  # noqa: S101
    seen = _seen(model, ids)
    return {
        f"routers of {part}, {_said(layer)}": _chosen(
            torch.stack([each for name, each in seen.items() if f".{module}." in name]), layer
        )
        for module, part in _PARTS.items()
    }


def _layer(module: str) -> int:
    found = re.search(r"\.layers\.(\d+)\.", module)
    return int(found[1]) if found else -1


def _chosen(weights: Tensor, layer: int | None) -> Tensor:
    """One layer of weights [L, n, D], or their mean."""
    if layer is None:
        return weights.mean(0)
    if layer >= len(weights):
        raise MoergeError(f"no layer {layer}", where="--layer", todo=f"give a layer from 0 to {len(weights) - 1}")
    return weights[layer]


def _said(layer: int | None) -> str:
    return "mean over the layers" if layer is None else f"layer {layer}"
