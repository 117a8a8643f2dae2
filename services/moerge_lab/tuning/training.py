"""The training of one process among several; it knows no Ray."""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch.nn import Module, Parameter
from transformers import PreTrainedModel

import moerge_lab.mixtures  # noqa: F401  # registers the classes
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.memory.peaks import PeakMemory
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.scoring.perplexity import load
from moerge_lab.training.batches import batches
from moerge_lab.training.checkpoint import Checkpoint
from moerge_lab.training.log import Log
from moerge_lab.training.loop import Run, Step, fit, language_loss
from moerge_lab.training.parameters import Which, trainable
from moerge_lab.training.routing import RoutedLoss, Routing

ROWS, CHECKPOINT, LOG = "rows.safetensors", "checkpoint.safetensors", "training.csv"
TRAINED, DONE = "trained.safetensors", "trained.json"
"""Trained parameters by the stock class's names, and the facts of the training, which are written last."""


@dataclass(frozen=True)
class Job:
    """A training in a work folder, which has the rows.

    Attributes:
        model: folder of the model before training.
        routing: while training; None: the model's own.
        domains: number of their rows' tensors, named 0, 1, ….
        batch: rows of all processes.
        weights: of the domains in the mixture.
        checkpoint_seconds: minimum interval between two checkpoints; None: the training room's.
    """

    model: Path
    work: Path
    trains: Which
    routing: Routing | None
    balance: float
    batch: int
    weights: tuple[float, ...]
    run: Run
    checkpoint_seconds: float | None = None


@dataclass(frozen=True)
class Process:
    """One of the training's processes.

    Attributes:
        wrap: makes the model exchange gradients with the other processes.
        mean: a number's mean over all processes.
    """

    rank: int = 0
    count: int = 1
    device: str = "cpu"
    wrap: Callable[[PreTrainedModel], Module] = lambda model: model
    mean: Callable[[float], float] = lambda value: value


class Done(NamedTuple):
    """A finished training: number of trained parameters, and peak memory of the first process in bytes, if known."""

    parameters: int
    peak_memory: int | None

    @classmethod
    def read(cls, work: Path) -> "Done | None":
        """None if the training isn't finished."""
        path = work / DONE
        return cls(**json.loads(path.read_bytes())) if path.is_file() else None


class _Read(Checkpoint):
    """A checkpoint that another process writes."""

    def keep(self, parameters: Mapping[str, Parameter], optimizer: torch.optim.AdamW) -> None:
        pass


def train(job: Job, process: Process) -> None:
    """Trains this process's part of every batch. The first process writes checkpoint, log and trained parameters.

    Raises:
        MoergeError: the loss is not finite.
    """
    torch.set_num_threads(1)  # another number gives other bytes
    peak, first = PeakMemory(process.device), process.rank == 0
    stored = load_file(job.work / ROWS)
    rows = [stored[str(number)] for number in range(len(stored))]
    log = Log(job.work / LOG)
    run = replace(job.run, seed=job.run.seed + (process.rank << 20))
    drawn = batches(rows, run.steps, job.batch, job.run.seed, job.weights)
    own = (batch.chunk(process.count)[process.rank] for batch in drawn)
    model = load(job.model, device=process.device)
    routed = None if job.routing is None else RoutedLoss(job.routing, job.balance)

    def done(step: Step) -> None:
        loss = process.mean(step.loss)
        if not math.isfinite(loss):
            todo = "give a lower one, for example rate=0.00003"
            raise MoergeError(f"the loss of step {step.number} is not finite", where="--recipe rate", todo=todo)
        if first:
            log.done(step._replace(loss=loss, tokens=step.tokens * process.count))

    routing = nullcontext() if routed is None else routed.routed(model)
    with trainable(model, job.trains) as (parameters, elements), routing:
        kind = Checkpoint if first else _Read
        checkpoint = kind(job.work / CHECKPOINT, job.checkpoint_seconds)
        resumed = log.resumed if first else lambda steps: None
        fit(process.wrap(model), parameters, own, run, done, routed or language_loss, checkpoint, resumed)
    if first:
        _write(job.work, parameters, Done(elements, peak.bytes()))


def _write(work: Path, parameters: Mapping[str, Parameter], done: Done) -> None:
    tensors = {name: parameter.detach() for name, parameter in parameters.items()}
    plans = [TensorPlan(name, each.dtype, tuple(each.shape), each.cpu) for name, each in tensors.items()]
    with atomic_file(work / TRAINED) as out:
        write_safetensors(out, plans)
    with atomic_file(work / DONE) as out:
        out.write(json.dumps(done._asdict()).encode())
