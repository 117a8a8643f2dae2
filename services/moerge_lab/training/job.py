"""One training of a model: parameters, batches, loss, schedule, checkpoint, log and progress in one place."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.progress import NoProgress, Progress
from moerge_lab.training.batches import batches
from moerge_lab.training.checkpoint import Checkpoint
from moerge_lab.training.loop import Log, Run, Trainer
from moerge_lab.training.losses import Loss, RoutedLoss, language_loss
from moerge_lab.training.parameters import Which, trainable

CHECKPOINT, LOG = "checkpoint.safetensors", "training.csv"


@dataclass(frozen=True)
class Process:
    """One of a training's processes, with the exchange of gradients, and a number's mean over all processes."""

    rank: int = 0
    count: int = 1
    wrap: Callable[[PreTrainedModel], Module] = lambda model: model
    mean: Callable[[float], float] = lambda value: value


@dataclass(frozen=True)
class Job:
    """A training in place.

    Attributes:
        model: on its device; in evaluation mode afterwards.
        sources: rows of each source of text, [n, context] int64.
        weights: of the sources in the mixture; None: equal ones.
        trains: the trained parameters of the model, or others by name that the loss uses.
        draws: rows [B, context] of each step from the first; None: shuffled passes over the sources.
        folder: of checkpoint and log, which a resumed training continues; None: neither is written.
    """

    model: PreTrainedModel
    run: Run
    sources: Sequence[Tensor]
    weights: Sequence[float] | None = None
    trains: Which | Mapping[str, Parameter] = "all"
    loss: Loss = language_loss
    draws: Iterable[Tensor] | None = None
    folder: Path | None = None
    progress: Progress = field(default_factory=NoProgress)
    title: str = "training"
    process: Process = Process()

    @property
    def step_tokens(self) -> int:
        """Tokens of a step of all processes."""
        return self.run.batch * self.sources[0].shape[1]


class Trained(NamedTuple):
    """A finished training: number of trained parameters, and of tokens."""

    parameters: int
    tokens: int


def train(job: Job) -> Trained:
    """Trains this process's part of every batch. The first process writes checkpoint and log.

    A resumed training takes the remaining steps of the interrupted one, with their batches, rates and random numbers.
    A loss that is not finite is an error.
    """
    run, process, model = job.run, job.process, job.model
    drawn = batches(job.sources, run.steps, run.batch, run.seed, job.weights) if job.draws is None else job.draws
    tokens = run.steps * job.step_tokens
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        trainable(model, job.trains) as (parameters, elements),
        job.loss.routed(model) if isinstance(job.loss, RoutedLoss) else nullcontext(),
        job.progress.track(job.title, tokens, "tokens") as tracker,
    ):
        trainer = Trainer(process.wrap(model), parameters, replace(run, seed=run.seed + (process.rank << 20)), job.loss)
        checkpoint = None if job.folder is None else Checkpoint(job.folder / CHECKPOINT)
        begun = 0 if checkpoint is None else checkpoint.restore(parameters, trainer.optimizer)
        log = None if job.folder is None or process.rank else Log(job.folder / LOG, begun)
        tracker.advance(begun * job.step_tokens)
        for number, batch in islice(enumerate(drawn), begun, run.steps):
            step = trainer.step(batch.chunk(process.count)[process.rank], number, run.rate(number))
            loss = process.mean(step.loss)
            if not math.isfinite(loss):
                todo = "give a lower one, for example 0.00003"
                raise MoergeError(f"the loss of step {step.number} is not finite", where="`rate`", todo=todo)
            if log is not None:  # first, so that the log has every step of the checkpoint
                log.add(step._replace(loss=loss, tokens=job.step_tokens))
            tracker.advance(job.step_tokens)
            if log is not None and checkpoint is not None:
                checkpoint.keep(parameters, trainer.optimizer)
    return Trained(elements, tokens)
