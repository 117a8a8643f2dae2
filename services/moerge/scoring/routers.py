"""The routers of a loaded version: forced, made random, or counted."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from moerge.models.batches import pad
from moerge.models.families.family import mlp_layers
from moerge.models.families.registry import host_of
from moerge.scoring.perplexity import Window

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # it takes 1.5 s, and a process without a model never needs it


def routers(model: "PreTrainedModel") -> list[nn.Module]:
    pattern = host_of(model.config).router_module
    return [model.get_submodule(pattern.format(layer=layer)) for layer in mlp_layers(model.config)]


def _experts(model: "PreTrainedModel") -> int:
    return host_of(model.config).slots(model.config)


RouterOutput = tuple[Tensor, Tensor, Tensor]
"""(logits [n, D], weights [n, k], experts [n, k])."""
RouterHook = Callable[[nn.Module, object, RouterOutput], RouterOutput]
"""A forward hook of a router's module."""


def forcing(expert: int, experts: int) -> RouterHook:
    """Sends every token to one of `experts`."""

    def force(module: nn.Module, inputs: object, output: RouterOutput) -> RouterOutput:
        logits, weights, chosen = output
        first = torch.zeros_like(weights)
        first[:, 0] = 1
        others = (torch.arange(chosen.shape[1]) + expert) % experts
        return logits, first, others.expand_as(chosen).to(chosen)

    return force


def avoiding(expert: int) -> RouterHook:
    """Sends no token to one expert: the best one that isn't chosen takes its place and weight. Needs k < D."""

    def avoid(module: nn.Module, inputs: object, output: RouterOutput) -> RouterOutput:
        logits, weights, chosen = output
        left = logits.scatter(1, chosen, -torch.inf)
        left[:, expert] = -torch.inf
        return logits, weights, torch.where(chosen == expert, left.argmax(dim=1, keepdim=True), chosen)

    return avoid


def first_choices(chosen: Tensor, experts: int) -> Tensor:
    """[D] int64, on the device of `chosen` [n, k]: counts of the first of the chosen experts; nothing waits for it."""
    first = chosen[:, 0]
    return first.new_zeros(experts).scatter_add_(0, first, torch.ones_like(first))


@contextmanager
def forced(model: "PreTrainedModel", expert: int) -> Iterator[None]:
    """While open, every token goes to `expert` only: the oracle of DUME section 3.2."""

    handles = [router.register_forward_hook(forcing(expert, _experts(model))) for router in routers(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def randomised(model: "PreTrainedModel", seed: int) -> Iterator[None]:
    """While open, the routers' weights are standard normal: the lower bound of DUME section 3.2."""
    generator = torch.Generator().manual_seed(seed)
    weights = [router.get_parameter(host_of(model.config).router_weight) for router in routers(model)]
    solved = [weight.detach().clone() for weight in weights]
    try:
        for weight in weights:
            weight.data.copy_(torch.randn(weight.shape, generator=generator))
        yield
    finally:
        for weight, before in zip(weights, solved, strict=True):
            weight.data.copy_(before)


class RoutingCounter:
    """Counts, per layer, the first-choice experts at the positions that predict scored tokens.

    `counts` is [L, D] int64. Open it around scoring and pass `count` to `after_batch`.
    """

    def __init__(self, model: "PreTrainedModel") -> None:
        self._routers = routers(model)
        self._seen: list[Tensor] = []
        self.counts = torch.zeros(len(self._routers), _experts(model), dtype=torch.int64)

    def count(self, batch: Sequence[Window], losses: object) -> None:
        predicts = pad([window.predicts for window in batch], torch.bool)  # [B, T]
        for layer, chosen in enumerate(self._seen):
            self.counts[layer] += first_choices(chosen.cpu()[predicts.flatten()], self.counts.shape[1])
        self._seen.clear()

    @contextmanager
    def counting(self) -> Iterator[None]:
        def seen(module: nn.Module, inputs: object, output: RouterOutput) -> None:
            self._seen.append(output[2])

        handles = [router.register_forward_hook(seen) for router in self._routers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
