"""The training of one process among several; it knows no Ray."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

import moerge_lab.mixtures  # noqa: F401  # registers the classes
from moerge.files import atomic_file
from moerge.models.dense import place
from moerge_lab.peaks import PeakMemory
from moerge_lab.recipes.base import number
from moerge_lab.training.job import Job, Process, train
from moerge_lab.training.losses import Loss, RoutedLoss, language_loss
from moerge_lab.tuning.request import Request

ROWS, MODEL, DONE = "rows.safetensors", "model", "trained.json"
"""In the work folder: rows of each domain, the trained model, and the facts of the training, which are written last."""


class Done(NamedTuple):
    """A finished training: number of trained parameters, and peak memory of the first process in bytes, if known."""

    parameters: int
    peak_memory: int | None

    @classmethod
    def read(cls, work: Path) -> "Done | None":
        path = work / DONE
        return cls(**json.loads(path.read_bytes())) if path.is_file() else None


def train_process(request: Request, work: Path, process: Process, device: str = "cpu") -> None:
    """Trains this process's part of every batch. The first process writes checkpoint, log and trained model."""
    torch.set_num_threads(1)
    peak, record, stored = PeakMemory(device), request.record, load_file(work / ROWS)
    model = request.build()
    place(model, device)
    loss: Loss = language_loss
    if request.routing is not None:
        loss = RoutedLoss(request.routing, number(record.options, "balance"))
    rows, weights = [stored[str(slot)] for slot in range(len(stored))], list(record.weights.values())
    job = Job(model, request.run, rows, weights, request.trains, loss, folder=work, process=process)
    trained = train(job)
    if process.rank:
        return
    shutil.rmtree(work / MODEL, ignore_errors=True)  # of a killed run
    model.to(request.dtype).save_pretrained(work / MODEL)  # type: ignore[arg-type]
    with atomic_file(work / DONE) as out:
        out.write(json.dumps(Done(trained.parameters, peak.bytes())._asdict()).encode())
