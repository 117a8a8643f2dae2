"""The training of a bank (SoE algorithm 2), and of its specialists."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Generator, Tensor
from torch.func import functional_call
from torch.nn import Module, Parameter
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge_lab.soups.bank import Bank
from moerge_lab.soups.domains import mixture, sampled_weights
from moerge_lab.training.batches import batches, joined
from moerge_lab.training.checkpoint import Checkpoint
from moerge_lab.training.loop import Run, Step, fit
from moerge_lab.training.parameters import trainable

FIT_STEPS, FIT_RATE = 30, 0.03
"""Steps of the fit of coefficients, and their highest learning rate."""
FINETUNE_RATE = 3e-4
"""Highest learning rate of a specialist's training on its text."""
Done = Callable[[Step], None]


def _nothing(step: Step) -> None:
    pass


class _Draws:
    """A batch per step, from a mixture that the step draws; `weights` [N] are those of the last batch."""

    def __init__(self, rows: Sequence[Tensor], support: int, size: int, run: Run) -> None:
        self._rows, self._support, self._size, self._run = rows, support, size, run
        self.weights = torch.empty(0)

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self._run.seed)
        for _ in range(self._run.steps):
            self.weights = sampled_weights(len(self._rows), self._support, generator)
            yield mixture(self._rows, self.weights, self._size, generator)


def loss_of(model: Module, parameters: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The mean cross-entropy of each next token, in nats, of the model with these parameters."""
    loss: Tensor = functional_call(model, parameters, kwargs={"input_ids": ids, "labels": ids, "use_cache": False}).loss
    return loss


def train(
    model: PreTrainedModel,
    bank: Bank,
    rows: Sequence[Tensor],
    support: int,
    size: int,
    run: Run,
    done: Done = _nothing,
    checkpoint: Checkpoint | None = None,
    resumed: Callable[[int], None] = lambda steps: None,
) -> None:
    """Trains the whole bank in place. Each E_i gets alpha_i times the gradient of the model's parameters.

    Args:
        model: of the bank's architecture; its own parameters are not used.
        rows: of each pretraining domain, [n, context] int64.
        support: number of domains with a weight, in a step.
        size: rows of a batch.
        done, checkpoint, resumed: see `moerge_lab.training.loop.fit`.

    Raises:
        MoergeError: the loss is not finite.
    """
    draws = _Draws(rows, support, size, run)

    def loss(functional: Module, ids: Tensor, noise: Generator) -> Tensor:
        return loss_of(functional, bank.instantiate(bank.alpha(draws.weights)), ids)

    def finished(step: Step) -> None:
        if not math.isfinite(step.loss):
            todo = "give a lower --rate"
            raise MoergeError(f"the loss of step {step.number} is not finite", where="--rate", todo=todo)
        done(step)

    model.requires_grad_(False)
    for parameter in bank.parameters.values():
        parameter.requires_grad_(True)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            fit(model, bank.parameters, draws, run, finished, loss, checkpoint, resumed)
    finally:
        for parameter in bank.parameters.values():
            parameter.requires_grad_(False)
        model.eval()


def fitted(model: PreTrainedModel, bank: Bank, alpha: Tensor, rows: Tensor, size: int, seed: int) -> Tensor:
    """[n]: the coefficients after gradient descent on a target's rows (SoE section 2.7). The bank stays as it is.

    Args:
        alpha: to start from, [n].
    """
    parameter = Parameter(alpha.detach().clone())
    run = Run(FIT_STEPS, FIT_RATE, seed=seed)
    model.requires_grad_(False)

    def loss(functional: Module, ids: Tensor, noise: Generator) -> Tensor:
        return loss_of(functional, bank.instantiate(parameter), ids)

    with torch.inference_mode(False), torch.enable_grad():
        fit(model, {"alpha": parameter}, batches([rows], run.steps, size, seed), run, _nothing, loss)
    model.eval()
    return parameter.detach()


def train_dense(
    model: PreTrainedModel,
    rows: Sequence[Tensor],
    weights: Sequence[float] | None,
    size: int,
    run: Run,
    done: Done = _nothing,
) -> None:
    """Trains a dense model in place, on a fixed mixture of sources."""
    with torch.inference_mode(False), torch.enable_grad(), trainable(model, "all") as (parameters, _):
        fit(model, parameters, batches(rows, run.steps, size, run.seed, weights), run, done)


def target_rows(documents: Sequence[Sequence[int]], end: int | None, context: int) -> Tensor:
    """A target's documents as rows of at most `context` tokens; one row if there are fewer."""
    tokens = sum(len(each) + (end is not None) for each in documents)
    return joined(documents, end, min(context, tokens))


def put(model: PreTrainedModel, parameters: dict[str, Tensor]) -> None:
    """Sets the model's parameters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(parameters[name])
