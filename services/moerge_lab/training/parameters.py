"""The trainable parameters of a published or dense model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PretrainedConfig, PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.families.family import mlp_layers
from moerge.models.families.mellum import LINEAR
from moerge.models.families.registry import host_of

Which = Literal["routers", "gates", "added", "all"]
"""`routers`: their weights. `gates`: also the gate matrix of every MLP, as DUME's code does. `added`: those that a
mixture doesn't take from its members. `all`: every parameter."""
_GATE_AND_UP = ".experts.gate_up_proj"  # [D, 2 I, H]; the gate matrix has the first I rows


class Trainable(NamedTuple):
    """Trainable parameters by name, and their number of elements."""

    parameters: Mapping[str, Parameter]
    elements: int


@contextmanager
def trainable(model: PreTrainedModel, which: Which | Mapping[str, Parameter]) -> Iterator[Trainable]:
    """While open, only these parameters of the model, or others by name, require a gradient; afterwards none does.

    AdamW leaves elements without a gradient as they are, bit for bit, if it has no weight decay.
    """
    chosen = which if isinstance(which, Mapping) else _chosen(model, which)
    model.requires_grad_(False)
    elements, handles = 0, []
    for name, parameter in chosen.items():
        parameter.requires_grad_(True)
        halved = which == "gates" and name.endswith(_GATE_AND_UP)
        elements += parameter.numel() // (2 if halved else 1)
        if halved:
            handles.append(parameter.register_hook(_of_gate))
    try:
        yield Trainable(chosen, elements)
    finally:
        for handle in handles:
            handle.remove()
        for parameter in chosen.values():
            parameter.requires_grad_(False)
        model.eval()


def require_trainable(config: PretrainedConfig, which: Which | None) -> None:
    """Requires a version that training doesn't break.

    Raises:
        MoergeError: the projections of queries and keys are to be trained, and are too small.
    """
    if which == "all" and getattr(config, LINEAR, False):
        problem = "the version's projections of queries and keys are multiples of 2^-30, and training would break them"
        raise MoergeError(problem, where="`recipe`", todo="train routers or gates only, or tune the dense experts")


def _chosen(model: PreTrainedModel, which: Which) -> Mapping[str, Parameter]:
    if which == "added":
        added: Mapping[str, Parameter] = cast(Any, model).added()  # a mixture's
        return added
    require_trainable(model.config, which)
    every = dict(model.named_parameters())
    if which == "all":
        return every
    host = host_of(model.config)
    names = {f"{host.router_module.format(layer=layer)}.{host.router_weight}" for layer in mlp_layers(model.config)}
    gates = {name for name in every if which == "gates" and name.endswith(_GATE_AND_UP)}
    return {name: parameter for name, parameter in every.items() if name in names | gates}


def _of_gate(gradient: Tensor) -> Tensor:
    gate, up = gradient.chunk(2, dim=1)
    return torch.cat([gate, torch.zeros_like(up)], dim=1)
