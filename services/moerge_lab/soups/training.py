"""The training of a bank (SoE algorithm 2), and of its specialists."""

from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor
from torch.func import functional_call
from torch.nn import Module, Parameter
from transformers import PreTrainedModel

from moerge_lab.soups.bank import Bank
from moerge_lab.soups.domains import mixture, sampled_weights
from moerge_lab.training.batches import joined
from moerge_lab.training.job import Job, train
from moerge_lab.training.loop import Run

FIT_STEPS, FIT_RATE = 30, 0.03
"""Steps of the fit of coefficients, and their highest learning rate."""
FINETUNE_RATE = 3e-4
"""Highest learning rate of a specialist's training on its text."""


def loss_of(model: Module, parameters: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The mean cross-entropy of each next token, in nats, of the model with these parameters."""
    loss: Tensor = functional_call(model, parameters, kwargs={"input_ids": ids, "labels": ids, "use_cache": False}).loss
    return loss


def bank_job(model: PreTrainedModel, bank: Bank, rows: Sequence[Tensor], support: int, run: Run) -> Job:
    """The training of the whole bank. Each E_i gets alpha_i times the gradient of the model's parameters.

    Args:
        model: of the bank's architecture; its parameters are not used.
        rows: of each pretraining domain, [n, context] int64.
        support: number of domains with a weight, in a step.
    """
    weights = torch.empty(0)  # [N], of the last batch

    def draws() -> Iterator[Tensor]:
        nonlocal weights
        generator = torch.Generator().manual_seed(run.seed)
        for _ in range(run.steps):
            weights = sampled_weights(len(rows), support, generator)
            yield mixture(rows, weights, run.batch, generator)

    def loss(functional: Module, ids: Tensor, noise: Generator) -> Tensor:
        return loss_of(functional, bank.instantiate(bank.alpha(weights)), ids)

    return Job(model, run, rows, trains=bank.parameters, loss=loss, draws=draws())


def fitted(model: PreTrainedModel, bank: Bank, alpha: Tensor, rows: Tensor, size: int, seed: int) -> Tensor:
    """[n]: coefficients after gradient descent from `alpha` [n] on a target's rows (SoE section 2.7)."""
    parameter = Parameter(alpha.detach().clone())

    def loss(functional: Module, ids: Tensor, noise: Generator) -> Tensor:
        return loss_of(functional, bank.instantiate(parameter), ids)

    train(Job(model, Run(FIT_STEPS, size, FIT_RATE, seed=seed), [rows], trains={"alpha": parameter}, loss=loss))
    return parameter.detach()


def target_rows(documents: Sequence[Sequence[int]], context: int) -> Tensor:
    """A target's documents as rows of at most `context` tokens; one row if there are fewer."""
    return joined(documents, None, min(context, sum(map(len, documents))))


def put(model: PreTrainedModel, parameters: dict[str, Tensor]) -> None:
    """Sets the model's parameters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(parameters[name])
