"""BTS: stitch layers between whole, frozen models (Branch-Train-Stitch, section 2.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from moerge.errors import MoergeError
from moerge.models.families import EMBEDDING, FINAL_NORM
from moerge_lab.mixtures.base import Mixture, MixtureConfig, Weights, common_config, dense_state, numbered

STITCHES = 4
"""Default number of stitch layers, as in the paper; at most one per layer."""
_HUB_NORM = "stock.model.norm.norm.weight"
DROPOUT = 0.1
"""Of the gates' logits while training; the paper names no rate."""


class BtsConfig(MixtureConfig):
    """The config of BTS. The hub is the first member.

    Attributes:
        stitches: number of stitch layers.
        alternating: False: all of them are experts-into-hub.
        masked: members, except the hub, that are left out.
    """

    model_type = "moerge_bts"
    stitches: int = STITCHES
    alternating: bool = True
    masked: list[str] = field(default_factory=list)

    @property
    def hidden(self) -> list[int]:
        """Numbers of the masked members."""
        return [number for number, name in enumerate(self.members) if name in self.masked]


def places(layers: int, stitches: int, *, alternating: bool = True) -> dict[int, bool]:
    """Number, from 0, of every layer with a stitch layer behind it -> whether that is experts-into-hub.

    Behind every floor(layers / stitches) layers (section 2.2). The last one is experts-into-hub, as are others at even
    distances from it; the paper's pseudo-code has the other parity, its text and figure this one.
    """
    every = layers // stitches
    return {every * number - 1: not alternating or (stitches - number) % 2 == 0 for number in range(1, stitches + 1)}


class Gates(Weights):
    """Elementwise weights from the gate's logits [B, T, n + 1, H]: a softmax over members, or sigmoids."""

    def __init__(self, masked: Sequence[int], *, into_hub: bool) -> None:
        super().__init__()
        self._masked, self._into_hub, self._dropout = [*masked], into_hub, nn.Dropout(DROPOUT)

    def forward(self, logits: Tensor) -> Tensor:
        logits = self._dropout(logits)
        if not self._into_hub:
            return logits.sigmoid()
        if self._masked:
            logits = logits.index_fill(-2, torch.tensor(self._masked, device=logits.device), -torch.inf)
        return logits.softmax(-2)


class Stitch(nn.Module):
    """A stitch layer: n projections and n + 1 gate matrices, all [H, H].

    Experts-into-hub (equation 1): g = softmax(W h_0) over the members, h_i' = P_i h_i,
    h_0' = g_0 h_0 + sum_i g_i h_i'.
    Hub-into-experts (equation 2): g = sigmoid(W h_0), h_i' = (1 - g_i) h_i + g_i P_i h_0.
    """

    def __init__(self, hidden: int, members: int, masked: Sequence[int], *, into_hub: bool) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(members - 1))
        self.gate = nn.Linear(hidden, members * hidden, bias=False)
        self.weights = Gates(masked, into_hub=into_hub)
        self._into_hub, self._masked = into_hub, set(masked)

    def forward(self, states: list[Tensor]) -> list[Tensor]:
        hub = states[0]
        gates = self.weights(self.gate(hub).unflatten(-1, (len(states), hub.shape[-1])))  # [B, T, n + 1, H]
        stitched, total = list(states), gates[..., 0, :] * hub
        for number, project in enumerate(self.projections, 1):
            if number in self._masked:
                continue
            gate = gates[..., number, :]
            if self._into_hub:
                stitched[number] = project(states[number])
                total = total + gate * stitched[number]
            else:
                stitched[number] = (1 - gate) * states[number] + gate * project(hub)
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
    """One layer of every member, and perhaps a stitch layer behind it.

    Args:
        members: their layers; behind the last stitch layer the hub's alone.
    """

    def __init__(self, members: list[nn.Module], stitch: Stitch | None, count: int, masked: Sequence[int]) -> None:
        super().__init__()
        self.members, self.stitch = nn.ModuleList(members), stitch
        self._count, self._masked = count, set(masked)

    def forward(self, hidden_states: Tensor, **settings: Any) -> Tensor:
        states = [*hidden_states.chunk(self._count, -1)]
        for number, member in enumerate(self.members):
            if number not in self._masked:
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
        count, hidden, masked = len(config.members), dense.hidden_size, config.hidden
        inner = self.stock.model
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
            into_hub = behind.get(number)
            stitch = None if into_hub is None else Stitch(hidden, count, masked, into_hub=into_hub)
            self.layers[number] = StitchedLayer(layers, stitch, count, masked)

    def get_input_embeddings(self) -> nn.Module:
        result: nn.Module = self.stock.model.embed_tokens.members[0]
        return result

    def added(self) -> dict[str, nn.Parameter]:
        """The stitch layers' parameters, without the projections of masked experts."""
        unused = [f".projections.{number - 1}." for number in cast(BtsConfig, self.config).hidden]
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if ".stitch." in name and not any(part in name for part in unused)
        }

    def share(self, name: str) -> float:
        """0 for masked members, and for embeddings but the hub's, which may be the head."""
        member = name.partition(".members.")[2].partition(".")[0]
        if not member.isdecimal() or member == "0":
            return 1
        return 0 if ".embed_tokens." in name or int(member) in cast(BtsConfig, self.config).hidden else 1

    @classmethod
    def of(cls, members: Mapping[str, Path], stitches: int = STITCHES, *, alternating: bool = True) -> Self:
        """The members with stitch layers whose projections are identities and whose gates are zero.

        Args:
            members: dense checkpoint folders; the hub is the first.
            stitches: number of stitch layers; at most one per layer.
        """
        dense = common_config(members)
        stitches = min(stitches, dense.num_hidden_layers)
        model = cls(BtsConfig.of(dense, [*members], stitches=stitches, alternating=alternating))
        result = {name: _initial(name, parameter) for name, parameter in model.added().items()}
        for slot, folder in enumerate(members.values()):
            result |= _member(folder, slot, model)
        return model.loaded(result)

    def masking(self, masked: Sequence[str]) -> Self:
        """The same model without these experts; their weights stay in it.

        Raises:
            MoergeError: a name isn't that of an expert.
        """
        config = cast(BtsConfig, self.config)
        if unknown := sorted(set(masked) - set(config.members[1:])):
            todo = f"use one of: {', '.join(config.members[1:])}"
            raise MoergeError(f"no expert {', '.join(unknown)}", where="mask", todo=todo)
        changed = type(self)(BtsConfig.from_dict({**config.to_dict(), "masked": [*masked]}))
        return changed.loaded(self.state_dict())

    def joined(self, name: str, folder: Path) -> Self:
        """The same model with one more expert, whose projections are identities and whose gates are zero.

        Masked experts stay masked.

        Raises:
            IncompatibleExpertError: it has another architecture.
        """
        config = cast(BtsConfig, self.config)
        members = [*config.members, name]
        kept = {"stitches": config.stitches, "alternating": config.alternating, "masked": config.masked}
        changed = type(self)(BtsConfig.of(config.dense_config, members, **kept))
        state = self.state_dict()
        for key, parameter in changed.added().items():
            new = _initial(key, parameter)
            if (old := state.get(key)) is not None:
                new[: len(old)] = old  # a gate has new rows
            state[key] = new
        state |= _member(folder, len(members) - 1, changed)
        return changed.loaded(state)


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
            result[_HUB_NORM if name == FINAL_NORM else f"stock.{name}"] = tensor
    return result
