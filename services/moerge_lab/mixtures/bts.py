"""BTS: stitch layers between whole, frozen models (Branch-Train-Stitch, section 2.2)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from moerge.models.families.family import EMBEDDING, FINAL_NORM
from moerge_lab.mixtures.base import Mixture, MixtureConfig, Weights, common_config, dense_state, numbered

STITCHES = 4
"""Default number of stitch layers, as in the paper; at most one per layer."""
DROPOUT = 0.1
"""Of the gates' logits while training; the paper names no rate."""


class BtsConfig(MixtureConfig):
    """The config of BTS. The hub is the first member.

    Attributes:
        stitches: number of stitch layers.
        alternating: False: all of them are experts-into-hub.
    """

    model_type = "moerge_bts"
    stitches: int = STITCHES
    alternating: bool = True


def places(layers: int, stitches: int, *, alternating: bool = True) -> dict[int, bool]:
    """Number, from 0, of every layer with a stitch layer behind it -> whether that is experts-into-hub.

    Behind every floor(layers / stitches) layers (section 2.2). The last one is experts-into-hub, as are others at even
    distances from it; the paper's pseudo-code has the other parity, its text and figure this one.
    """
    every = layers // stitches
    return {every * number - 1: not alternating or (stitches - number) % 2 == 0 for number in range(1, stitches + 1)}


class Gates(Weights):
    """Elementwise weights from the gate's logits [B, T, n + 1, H]: a softmax over members, or sigmoids."""

    def __init__(self, *, into_hub: bool) -> None:
        super().__init__()
        self._into_hub, self._dropout = into_hub, nn.Dropout(DROPOUT)

    def forward(self, logits: Tensor) -> Tensor:
        logits = self._dropout(logits)
        return logits.softmax(-2) if self._into_hub else logits.sigmoid()


class Stitch(nn.Module):
    """A stitch layer: n projections and n + 1 gate matrices, all [H, H].

    Experts-into-hub (equation 1): g = softmax(W h_0) over the members, h_i' = P_i h_i,
    h_0' = g_0 h_0 + sum_i g_i h_i'.
    Hub-into-experts (equation 2): g = sigmoid(W h_0), h_i' = (1 - g_i) h_i + g_i P_i h_0.
    """

    def __init__(self, hidden: int, members: int, *, into_hub: bool) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(members - 1))
        self.gate = nn.Linear(hidden, members * hidden, bias=False)
        self.weights = Gates(into_hub=into_hub)
        self._into_hub = into_hub

    def forward(self, states: list[Tensor]) -> list[Tensor]:
        hub, *experts = states
        gates = self.weights(self.gate(hub).unflatten(-1, (len(states), hub.shape[-1])))  # [B, T, n + 1, H]
        first, *others = gates.unbind(-2)
        stitched, total = [hub], first * hub
        for project, gate, state in zip(self.projections, others, experts, strict=True):
            if self._into_hub:
                stitched.append(project(state))
                total = total + gate * stitched[-1]
            else:
                stitched.append((1 - gate) * state + gate * project(hub))
        if self._into_hub:
            stitched[0] = total
        return stitched


class Embeddings(nn.Module):
    """All members' embeddings of the tokens, side by side: [B, T, (n + 1) H]."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def weight(self) -> Tensor:
        return cast(nn.Embedding, self.members[0]).weight

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([member(ids) for member in self.members], -1)


class StitchedLayer(nn.Module):
    """One layer of every member, behind the last stitch layer the hub's alone; and perhaps a stitch layer behind it."""

    def __init__(self, members: list[nn.Module], stitch: Stitch | None, count: int) -> None:
        super().__init__()
        self.members, self.stitch, self._count = nn.ModuleList(members), stitch, count

    def forward(self, hidden_states: Tensor, **settings: Any) -> Tensor:
        states = [*hidden_states.chunk(self._count, -1)]
        for number, member in enumerate(self.members):
            states[number] = member(states[number], **settings)
        return torch.cat(states if self.stitch is None else self.stitch(states), -1)


class HubNorm(nn.Module):
    """The hub's final norm, of its part of the hidden states."""

    def __init__(self, norm: nn.Module, hidden: int) -> None:
        super().__init__()
        self.norm, self._hidden = norm, hidden

    def forward(self, hidden_states: Tensor) -> Tensor:
        return cast(Tensor, self.norm(hidden_states[..., : self._hidden]))


class Bts(Mixture):
    """The hub and the experts as whole models, with stitch layers between them; its logits are the hub's."""

    config_class = BtsConfig
    _tied_weights_keys = {"stock.lm_head.weight": "stock.model.embed_tokens.members.0.weight"}  # noqa: RUF012

    def replace_modules(self) -> None:
        config, dense = cast(BtsConfig, self.config), self.stock.config
        dense.tie_word_embeddings = False  # tied here instead
        count, hidden, inner = len(config.members), dense.hidden_size, self.stock.model
        embedding = inner.embed_tokens
        more = [type(embedding)(*embedding.weight.shape, embedding.padding_idx) for _ in range(count - 1)]
        inner.embed_tokens = Embeddings([embedding, *more])
        inner.norm = HubNorm(inner.norm, hidden)
        behind = places(dense.num_hidden_layers, config.stitches, alternating=config.alternating)
        for number, layer in enumerate(self.layers):
            layers = [layer]
            if number <= max(behind):
                layers += [type(layer)(dense, number) for _ in range(count - 1)]
            for slot, item in enumerate(layers):
                numbered(item, number * count + slot)
            stitch = Stitch(hidden, count, into_hub=behind[number]) if number in behind else None
            self.layers[number] = StitchedLayer(layers, stitch, count)

    def get_input_embeddings(self) -> nn.Module:
        return cast(nn.Module, self.stock.model.embed_tokens.members[0])

    def added(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.named_parameters() if ".stitch." in name}

    def share(self, name: str) -> float:
        """0 for embeddings but the hub's, which may be the head."""
        return float(".embed_tokens.members." not in name or ".embed_tokens.members.0." in name)

    @classmethod
    def of(cls, members: Mapping[str, Path], stitches: int = STITCHES, *, alternating: bool = True) -> Self:
        """The members with stitch layers whose projections are identities and whose gates are zero.

        Args:
            members: dense checkpoint folders; the hub is the first.
        """
        dense = common_config(members)
        stitches = min(stitches, dense.num_hidden_layers)
        model = cls(BtsConfig.of(dense, [*members], stitches=stitches, alternating=alternating))
        result = {name: _initial(name, parameter) for name, parameter in model.added().items()}
        for slot, folder in enumerate(members.values()):
            result |= _member(folder, slot, model)
        return model.loaded(result)


def _initial(name: str, parameter: nn.Parameter) -> Tensor:
    return torch.zeros(parameter.shape) if name.endswith(".gate.weight") else torch.eye(parameter.shape[0])


def _member(folder: Path, slot: int, model: Bts) -> dict[str, Tensor]:
    """A dense model's tensors by the names of a member; of the head and the final norm, the hub's alone."""
    known, result = set(model.state_dict()), dict[str, Tensor]()
    for name, tensor in dense_state(folder).items():
        if name == EMBEDDING:
            result[f"stock.model.embed_tokens.members.{slot}.weight"] = tensor
        elif name.startswith("model.layers."):
            number, _, rest = name.removeprefix("model.layers.").partition(".")
            if (mine := f"stock.model.layers.{number}.members.{slot}.{rest}") in known:
                result[mine] = tensor
        elif slot == 0:
            result["stock.model.norm.norm.weight" if name == FINAL_NORM else f"stock.{name}"] = tensor
    return result
