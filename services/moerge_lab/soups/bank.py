"""The bank of a Soup-of-Experts: shared parameters, experts' parameters, and the MLP of their coefficients."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Generator, Tensor
from torch.nn import Parameter
from torch.nn.functional import linear
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


class Bank:
    """S + sum_i alpha_i E_i with alpha = MLP(h) (SoE equations 2 and 3).

    `shared.NAME` is a parameter of S. `experts.NAME` [n, ...] has those of every E_i. Larger matrices than a rank R are
    U V^T with `experts.NAME.u` [n, out, R] and `experts.NAME.v` [n, in, R] (SoE section 2.6).
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = parameters
        self._names = [name.removeprefix("shared.") for name in parameters if name.startswith("shared.")]

    def alpha(self, weights: Tensor) -> Tensor:
        """[n]: the experts' coefficients for domain weights [N]."""
        of = self.parameters
        hidden = linear(weights.to(of["mlp.0.weight"].device), of["mlp.0.weight"], of["mlp.0.bias"]).relu()
        result: Tensor = linear(hidden, of["mlp.1.weight"], of["mlp.1.bias"])
        return result

    def instantiate(self, alpha: Tensor) -> dict[str, Tensor]:
        """The model's parameters for coefficients [n]."""
        return {name: self.parameters[f"shared.{name}"] + self._experts(name, alpha) for name in self._names}

    def _experts(self, name: str, alpha: Tensor) -> Tensor:
        if (whole := self.parameters.get(f"experts.{name}")) is not None:
            result: Tensor = torch.tensordot(alpha, whole, dims=1)  # alpha_1 E_1 + ... + alpha_n E_n
            return result
        u, v = (self.parameters[f"experts.{name}.{side}"] for side in "uv")
        return torch.einsum("n,nor,nir->oi", alpha, u, v)


def _is_low(shape: Sequence[int], rank: int) -> bool:
    return bool(rank) and len(shape) == 2 and rank < min(shape)


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
    """
    device, generator = model.device, torch.Generator().manual_seed(seed)
    if start == "scratch":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    base = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    result: dict[str, Tensor] = {}
    for name, value in base.items():
        result[f"shared.{name}"] = value.clone()
        if start == "experts":
            parts = [expert.tensor(name).float() - value for expert in experts]
        else:
            parts = [_random(value.shape, generator) for _ in range(count)]
        if _is_low(value.shape, rank):
            sides = zip(*(_low(part, rank) for part in parts), strict=True)
            result |= {
                f"experts.{name}.{side}": torch.stack(factors) for side, factors in zip("uv", sides, strict=True)
            }
        else:
            result[f"experts.{name}"] = torch.stack(parts)
    result["mlp.0.weight"] = torch.randn(HIDDEN, domains, generator=generator)
    result["mlp.0.bias"] = torch.zeros(HIDDEN)
    result["mlp.1.weight"] = _MLP_DEVIATION * torch.randn(count, HIDDEN, generator=generator)
    result["mlp.1.bias"] = torch.full((count,), 1 / count)
    return Bank({name: Parameter(item.to(device), requires_grad=False) for name, item in result.items()})


def _random(shape: torch.Size, generator: Generator) -> Tensor:
    """Normal elements of matrices; vectors, such as gains, are 0."""
    return INITIAL_DEVIATION * torch.randn(shape, generator=generator) if len(shape) > 1 else torch.zeros(shape)


def _low(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """[out, R] and [in, R]: U V^T is the best approximation of the matrix."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    roots = s[:rank].sqrt()
    return u[:, :rank] * roots, vh[:rank].T * roots
