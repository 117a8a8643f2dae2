"""The bank of a Soup-of-Experts: shared parameters, experts' parameters, and the MLP of their coefficients."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

import torch
from torch import Generator, Tensor
from torch.nn import Parameter
from transformers import AutoModelForCausalLM, PreTrainedModel

from moerge.models.reader import Checkpoint

Start = Literal["experts", "seed", "scratch"]
STARTS: tuple[Start, ...] = get_args(Start)
"""The parameters before training.

`experts`: S is the seed model, and each E_i an expert's task vector.
`seed`: S is the seed model, and each E_i is small and random.
`scratch`: S is random, too, as in the paper.
"""
HIDDEN = 1024
"""Width of the MLP. A wide one moves the coefficients within some hundred steps at the rate of the other parameters."""
INITIAL_DEVIATION = 2e-3
"""Standard deviation of random elements of E_i."""
_MLP_DEVIATION = 0.003
Shapes = Mapping[str, tuple[int, ...]]
Part = Callable[[str], Tensor]
"""Parameter's name -> an E_i's part of it."""


class Bank:
    """S + sum_i alpha_i E_i with alpha = MLP(h) (SoE equations 2 and 3).

    Args:
        parameters: by name, as in `shapes`.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = parameters
        self._names = [name.removeprefix("shared.") for name in parameters if name.startswith("shared.")]

    def alpha(self, weights: Tensor) -> Tensor:
        """[n]: the experts' coefficients for domain weights [N]."""
        first, second = (
            (self.parameters[f"mlp.{layer}.weight"], self.parameters[f"mlp.{layer}.bias"]) for layer in (0, 1)
        )
        hidden = torch.nn.functional.linear(weights.to(first[0].device), *first).relu()
        result: Tensor = torch.nn.functional.linear(hidden, *second)
        return result

    def instantiate(self, alpha: Tensor) -> dict[str, Tensor]:
        """The model's parameters for coefficients [n]."""
        return {name: self.parameters[f"shared.{name}"] + self._experts(name, alpha) for name in self._names}

    def _experts(self, name: str, alpha: Tensor) -> Tensor:
        whole = self.parameters.get(f"experts.{name}")
        if whole is not None:
            result: Tensor = torch.tensordot(alpha, whole, dims=1)  # alpha_1 E_1 + ... + alpha_n E_n
            return result
        u, v = (self.parameters[f"experts.{name}.{side}"] for side in "uv")
        return torch.einsum("n,nor,nir->oi", alpha, u, v)

    @property
    def elements(self) -> int:
        """Number of elements of all parameters."""
        return sum(parameter.numel() for parameter in self.parameters.values())


def shapes(model: Shapes, experts: int, rank: int, domains: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a bank's parameters.

    `shared.NAME` is a parameter of S. `experts.NAME` [n, ...] has those of every E_i; of low rank,
    `experts.NAME.u` [n, out, R] and `experts.NAME.v` [n, in, R] have matrices U V^T (SoE section 2.6).

    Args:
        model: parameter's name -> shape.
        experts: their number n.
        rank: R; 0: full. Smaller matrices and vectors are full.
        domains: number of domain weights.
    """
    result: dict[str, tuple[int, ...]] = {}
    for name, shape in model.items():
        result[f"shared.{name}"] = shape
        if _is_low(shape, rank):
            result |= {f"experts.{name}.u": (experts, shape[0], rank), f"experts.{name}.v": (experts, shape[1], rank)}
        else:
            result[f"experts.{name}"] = (experts, *shape)
    result |= {"mlp.0.weight": (HIDDEN, domains), "mlp.0.bias": (HIDDEN,)}
    return result | {"mlp.1.weight": (experts, HIDDEN), "mlp.1.bias": (experts,)}


def _is_low(shape: Sequence[int], rank: int) -> bool:
    return bool(rank) and len(shape) == 2 and rank < min(shape)


def model_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter of a dense model; a tied head has none of its own."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def new_bank(
    model: PreTrainedModel,
    start: Start,
    experts: Sequence[Checkpoint],
    count: int,
    rank: int,
    domains: int,
    seed: int,
) -> Bank:
    """A bank before training, whose coefficients are about 1 / n: with `experts` their average.

    Args:
        model: the seed model, float32 on its device.
        experts: of the same architecture; used by `start="experts"` only.
        count: number of E_i; with `experts` theirs.
        rank: of the matrices of E_i, started from the largest singular values; 0: full.
        domains: number of domain weights.
        seed: of random parameters.
    """
    device, generator = model.device, torch.Generator().manual_seed(seed)
    if start == "scratch":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    base = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    parts: list[Part] = [partial(_random, base, generator)] * count
    if start == "experts":
        parts = [partial(_task_vector, base, expert) for expert in experts]
    made: dict[str, Tensor] = {}
    for name, value in base.items():
        made[f"shared.{name}"] = value.clone()
        own = [part(name) for part in parts]
        if _is_low(value.shape, rank):
            sides = [_low(item, rank) for item in own]
            for number, side in enumerate("uv"):
                made[f"experts.{name}.{side}"] = torch.stack([item[number] for item in sides])
        else:
            made[f"experts.{name}"] = torch.stack(own)
    made["mlp.0.weight"] = torch.randn(HIDDEN, domains, generator=generator)
    made["mlp.0.bias"] = torch.zeros(HIDDEN)
    made["mlp.1.weight"] = _MLP_DEVIATION * torch.randn(len(parts), HIDDEN, generator=generator)
    made["mlp.1.bias"] = torch.full((len(parts),), 1 / len(parts))
    return Bank({name: Parameter(item.to(device), requires_grad=False) for name, item in made.items()})


def _task_vector(base: Mapping[str, Tensor], expert: Checkpoint, name: str) -> Tensor:
    return expert.tensor(name).float() - base[name]


def _random(base: Mapping[str, Tensor], generator: Generator, name: str) -> Tensor:
    """Normal elements of matrices; vectors, such as gains, are 0."""
    shape = base[name].shape
    return INITIAL_DEVIATION * torch.randn(shape, generator=generator) if len(shape) > 1 else torch.zeros(shape)


def _low(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """[out, R] and [in, R]: U V^T is the best approximation of the matrix."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    roots = s[:rank].sqrt()
    return u[:, :rank] * roots, vh[:rank].T * roots
