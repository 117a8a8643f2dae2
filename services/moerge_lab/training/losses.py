"""Losses: the language model's, and a published model's under a routing of BTX, DUME or a straight-through one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Generator, Tensor
from torch.nn import Module
from torch.nn.functional import one_hot
from transformers import PreTrainedModel

from moerge.scoring.routers import routers

Loss = Callable[[Module, Tensor, Generator], Tensor]
"""A model's mean loss on rows [B, T] int64; the generator, on the CPU, is for its random numbers."""
Routing = Literal["top1", "top2", "soft", "straight", "gumbel", "eq4"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
"""Ways to weight the experts while training.

`top1`, `top2`: the stock classes' softmax over the k largest logits. With k = 1 the weight is 1 whatever the logits,
so routers get no gradient.
`soft`: the softmax over all experts.
`straight`: the first choice with weight 1 forward; backward the softmax over all experts.
`gumbel`: the same with Gumbel noise on the logits (BTX's sample top-1; Jang et al. 2016).
`eq4`: the first choice, weighted by its probability among all experts (DUME equation 4).
"""


def language_loss(model: Module, ids: Tensor, noise: Generator) -> Tensor:
    """The mean cross-entropy of each next token, in nats."""
    loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


def experts_per_token(routing: Routing, experts: int) -> int:
    """The k of the trained model in a stock class."""
    return {"top2": min(2, experts), "soft": experts}.get(routing, 1)


def choose(routing: Routing, logits: Tensor, noise: Generator) -> tuple[Tensor, Tensor]:
    """Weights [n, k] float32 and experts [n, k] int64 from a router's logits [n, D].

    Args:
        noise: on the CPU; for `gumbel`.
    """
    count = logits.shape[-1]
    every = torch.arange(count, device=logits.device).expand(len(logits), count)
    if routing == "gumbel":
        uniform = torch.rand(logits.shape, generator=noise).clamp_min(1e-20)
        logits = logits.float() - (-uniform.log()).log().to(logits.device)
    p = logits.float().softmax(-1)
    if routing == "soft":
        return p, every
    if routing in ("straight", "gumbel"):
        return one_hot(p.argmax(-1), count) + (p - p.detach()), every
    if routing == "eq4":
        return p.max(-1, keepdim=True)
    largest, chosen = logits.float().topk(experts_per_token(routing, count))
    return largest.softmax(-1), chosen


@dataclass
class RoutedLoss:
    """The language loss of a model under a routing, plus a balance of the experts' load.

    Attributes:
        balance: factor of the mean over layers of D sum_e u_e p_e, with u_e an expert's mean weight and p_e its mean
            probability over the tokens (Sukhbaatar et al. 2024, load balancing).
    """

    routing: Routing
    balance: float = 0.0
    _noise: Generator = field(default_factory=Generator)
    _terms: list[Tensor] = field(default_factory=list)

    @contextmanager
    def routed(self, model: PreTrainedModel) -> Iterator[None]:
        """While open, the model's routers choose by the routing."""

        def hook(router: Module, inputs: object, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
            logits, stock, _ = output
            weights, experts = choose(self.routing, logits, self._noise)
            if self.balance:
                self._terms.append(_balance(logits, weights, experts))
            return logits, weights.to(stock.dtype), experts

        handles = [router.register_forward_hook(hook) for router in routers(model)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __call__(self, model: Module, ids: Tensor, noise: Generator) -> Tensor:
        self._noise = noise
        self._terms.clear()
        loss = language_loss(model, ids, noise)
        return loss + self.balance * torch.stack(self._terms).mean() if self._terms else loss


def _balance(logits: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
    count = logits.shape[-1]
    used = torch.zeros(count, device=logits.device).index_add(0, experts.flatten(), weights.flatten()) / len(logits)
    return count * (used * logits.float().softmax(-1).mean(0)).sum()
