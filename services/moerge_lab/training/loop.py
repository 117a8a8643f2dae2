"""The training loop: AdamW on a model's trainable parameters, with a warm-up and a cosine decay."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import Module, Parameter

from moerge_lab.training.checkpoint import Checkpoint

Loss = Callable[[Module, Tensor, Generator], Tensor]
"""A model's mean loss on rows [B, T] int64; the generator, on the CPU, is for its random numbers."""


@dataclass(frozen=True)
class Run:
    """Settings of a training.

    Attributes:
        steps: of the optimizer.
        learning_rate: the highest.
        warmup: share of the steps in which the rate rises linearly; afterwards it falls to 0 by a cosine.
        weight_decay: AdamW's.
        clip: largest norm of the gradient.
        accumulate: parts of a batch, computed one after another to save memory.
        seed: of the loss's random numbers.
        bfloat16: whether forward and backward pass are autocast; parameters and optimizer keep their dtype.
    """

    steps: int
    learning_rate: float
    warmup: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    accumulate: int = 1
    seed: int = 0
    bfloat16: bool = False

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        warmup = max(1, round(self.warmup * self.steps))
        if step < warmup:
            return self.learning_rate * ((step + 1) / warmup)
        return self.learning_rate * (0.5 * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup))))


class Step(NamedTuple):
    """A finished step: its number from 1, its tokens, mean loss in nats and learning rate."""

    number: int
    tokens: int
    loss: float
    rate: float


def language_loss(model: Module, ids: Tensor, noise: Generator) -> Tensor:
    """The mean cross-entropy of each next token, in nats."""
    loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


class Trainer:
    """A model with an optimizer of its trainable parameters.

    Args:
        model: in training mode afterwards. A wrapper, such as DDP's, may have the parameters inside.
        parameters: the trainable ones by name; all others must not require a gradient.
        run: its schedule is the caller's concern.
        loss: of a batch.
    """

    def __init__(
        self, model: Module, parameters: Mapping[str, Parameter], run: Run, loss: Loss = language_loss
    ) -> None:
        self.model, self.parameters, self._run, self._loss = model, parameters, run, loss
        every: Any = list(parameters.values())
        self.optimizer = torch.optim.AdamW(every, betas=(0.9, 0.98), weight_decay=run.weight_decay, fused=True)
        self._device = every[0].device
        model.train()

    def step(self, batch: Tensor, number: int, rate: float) -> Step:
        """Takes one step on rows [B, T] int64, and returns it; `number`, from 0, also seeds the random numbers."""
        seed = self._run.seed * 1_000_003 + number
        noise = torch.Generator().manual_seed(seed)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parts, total = batch.to(self._device).chunk(self._run.accumulate), 0.0
        with torch.random.fork_rng([] if self._device.type == "cpu" else [self._device]):
            torch.manual_seed(seed)  # of dropout
            for part in parts:
                with torch.autocast(self._device.type, torch.bfloat16, enabled=self._run.bfloat16):
                    loss = self._loss(self.model, part, noise)
                share = len(part) / len(batch)
                (loss if share == 1 else share * loss).backward()
                total += share * float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self._run.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Step(number + 1, batch.numel(), total, rate)


def fit(
    model: Module,
    parameters: Mapping[str, Parameter],
    batches: Iterable[Tensor],
    run: Run,
    done: Callable[[Step], None],
    loss: Loss = language_loss,
    checkpoint: Checkpoint | None = None,
    resumed: Callable[[int], None] = lambda steps: None,
) -> None:
    """Trains the parameters in place.

    Args:
        model, parameters, loss: see `Trainer`.
        batches: one per step, the same at every call.
        done: called after each step.
        checkpoint: to resume from, and to write.
        resumed: called first, with the number of the checkpoint's steps.
    """
    trainer = Trainer(model, parameters, run, loss)
    begun = 0 if checkpoint is None else checkpoint.restore(parameters, trainer.optimizer)
    resumed(begun)
    for number, batch in islice(enumerate(batches), begun, run.steps):
        step = trainer.step(batch, number, run.rate(number))
        done(step)  # first, so that a log has every step of the checkpoint
        if checkpoint is not None:
            checkpoint.keep(parameters, trainer.optimizer)
