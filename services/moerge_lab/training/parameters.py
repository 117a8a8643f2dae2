"""The trainable parameters of a published or dense model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol, cast, get_args

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from moerge.models.families import published_family

Which = Literal["routers", "gates", "added", "all"]
WHICH: tuple[Which, ...] = get_args(Which)
"""`routers`: their weights. `gates`: also the gate matrix of every MLP, as DUME's code does. `added`: those that a
mixture doesn't take from its members. `all`: every parameter."""
_GATE_AND_UP = ".experts.gate_up_proj"  # [D, 2 I, H]; the gate matrix has the first I rows


class _Mixture(Protocol):
    def added(self) -> Mapping[str, Parameter]: ...


class Trainable(NamedTuple):
    """Trainable parameters by name, and their number of elements."""

    parameters: Mapping[str, Parameter]
    elements: int


@contextmanager
def trainable(model: PreTrainedModel, which: Which | Mapping[str, Parameter]) -> Iterator[Trainable]:
    """While open, only these parameters of the model, or others by name, require a gradient; afterwards none does.

    AdamW leaves elements without a gradient as they are, bit for bit, if it has no weight decay.
    """
    if isinstance(which, Mapping):
        with _others(model, which):
            yield Trainable(which, sum(parameter.numel() for parameter in which.values()))
        return
    chosen = set(cast(_Mixture, model).added()) if which == "added" else set[str]()
    if which in ("routers", "gates"):
        router = published_family(model.config).router_module
        chosen = {f"{router.format(layer=layer)}.weight" for layer in range(model.config.num_hidden_layers)}
    result, elements, handles = dict[str, Parameter](), 0, []
    for name, parameter in model.named_parameters():
        halved = which == "gates" and name.endswith(_GATE_AND_UP)
        parameter.requires_grad_(which == "all" or name in chosen or halved)
        if parameter.requires_grad:
            result[name] = parameter
            elements += parameter.numel() // (2 if halved else 1)
        if halved:
            handles.append(parameter.register_hook(_of_gate))
    try:
        yield Trainable(result, elements)
    finally:
        for handle in handles:
            handle.remove()
        model.requires_grad_(False)
        model.eval()


@contextmanager
def _others(model: PreTrainedModel, parameters: Mapping[str, Parameter]) -> Iterator[None]:
    model.requires_grad_(False)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in parameters.values():
            parameter.requires_grad_(False)
        model.eval()


def _of_gate(gradient: Tensor) -> Tensor:
    gate, up = gradient.chunk(2, dim=1)
    return torch.cat([gate, torch.zeros_like(up)], dim=1)
