"""BAM: members' attention and MLPs as experts of one model (Zhang et al. 2024; BTS section 3.3)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from moerge_lab.mixtures.base import (
    INITIAL_DEVIATION,
    Mixture,
    MixtureConfig,
    Weights,
    common_config,
    dense_state,
    numbered,
)

_ATTENTION, _MLP = "self_attn", "mlp"


class BamConfig(MixtureConfig):
    """The config of BAM.

    Attributes:
        num_experts_per_tok: MLPs per token; 0: all. All attention experts run.
        adapters: whether an [H, H] matrix maps each expert's output (BTS equation 3).
    """

    model_type = "moerge_bam"
    num_experts_per_tok: int = 0
    adapters: bool = False


class Shares(Weights):
    """The softmax of the k largest logits, 0 elsewhere: [..., n]."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self._k = k

    def forward(self, logits: Tensor) -> Tensor:
        chosen = logits.topk(self._k or logits.shape[-1]).indices
        left_out = torch.ones_like(logits, dtype=torch.bool).scatter(-1, chosen, value=False)
        return logits.float().masked_fill(left_out, -torch.inf).softmax(-1).to(logits.dtype)


class Experts(nn.Module):
    """Modules whose outputs are summed with a router's weights: y = sum_i p_i(x) W_i f_i(x), BTS equation 3.

    Without adapters each W_i is the identity (BTS equations 4 and 5).
    """

    def __init__(self, experts: list[nn.Module], hidden: int, k: int, *, adapters: bool) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.router = nn.Linear(hidden, len(experts), bias=False)
        self.weights = Shares(k)
        self.adapters = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in experts) if adapters else None

    def mixed(self, x: Tensor, **settings: Any) -> Tensor:
        weights, total = self.weights(self.router(x)), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            y = expert(x, **settings)
            y = y[0] if isinstance(y, tuple) else y
            y = y if self.adapters is None else self.adapters[number](y)
            total = total + weights[..., number, None] * y
        return total


class AttentionExperts(Experts):
    """In the place of a layer's attention."""

    def forward(self, hidden_states: Tensor, **settings: Any) -> tuple[Tensor, None]:
        return self.mixed(hidden_states, **settings), None


class MlpExperts(Experts):
    """In the place of a layer's MLP."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.mixed(hidden_states)


class Bam(Mixture):
    """A dense model whose attention and MLP are mixtures of the members' in each layer."""

    config_class = BamConfig

    def replace_modules(self) -> None:
        config, dense = cast(BamConfig, self.config), self.stock.config
        count, hidden = len(config.members), dense.hidden_size
        for number, layer in enumerate(self.layers):
            attention, mlp = type(layer.self_attn), type(layer.mlp)
            own = [numbered(attention(dense, number), number * count + slot) for slot in range(count)]
            layer.self_attn = AttentionExperts(own, hidden, 0, adapters=config.adapters)
            mlps: list[nn.Module] = [mlp(dense) for _ in range(count)]
            layer.mlp = MlpExperts(mlps, hidden, config.num_experts_per_tok, adapters=config.adapters)

    def added(self) -> dict[str, nn.Parameter]:
        return {
            name: parameter for name, parameter in self.named_parameters() if ".router." in name or ".adapters." in name
        }

    def share(self, name: str) -> float:
        config = cast(BamConfig, self.config)
        chosen = (config.num_experts_per_tok or len(config.members)) / len(config.members)
        return chosen if f".{_MLP}.experts." in name else 1

    @classmethod
    def of(cls, members: Mapping[str, Path], seed: int, k: int = 0, *, adapters: bool = False) -> Self:
        """The members' attention and MLPs, with the average of everything else and random routers.

        Args:
            members: dense checkpoint folders; the seed model is the first.
            k: MLPs per token; 0: all.
        """
        dense = common_config(members)
        model = cls(BamConfig.of(dense, [*members], num_experts_per_tok=k, adapters=adapters))
        generator, result, shared = torch.Generator().manual_seed(seed), dict[str, Tensor](), dict[str, Tensor]()
        for slot, folder in enumerate(members.values()):
            for name, tensor in dense_state(folder).items():
                if (part := _expert_name(name, slot)) is not None:
                    result[f"stock.{part}"] = tensor
                else:
                    shared[name] = shared.get(name, 0) + tensor.double()
        result |= {f"stock.{name}": (item / len(members)).float() for name, item in shared.items()}
        for name, parameter in model.added().items():
            random = torch.randn(parameter.shape, generator=generator) * INITIAL_DEVIATION
            result[name] = random if ".router." in name else torch.eye(parameter.shape[0])
        return model.loaded(result)


def _expert_name(name: str, slot: int) -> str | None:
    """The name of a dense model's tensor as an expert's; None for a shared one."""
    for block in (_ATTENTION, _MLP):
        start, result, rest = name.partition(f".{block}.")
        if result:
            return f"{start}.{block}.experts.{slot}.{rest}"
    return None
