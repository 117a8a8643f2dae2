"""A tuning: request, training on Ray, and the folder. An interrupted one continues at its checkpoint."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save

from moerge.errors import MoergeError
from moerge.files import alone, atomic_file, work_folder
from moerge.progress import NoProgress, Progress, Tracker
from moerge_lab.recipes.base import number, whole
from moerge_lab.training.log import losses
from moerge_lab.training.loop import Run
from moerge_lab.tuning.folder import tensor_bytes, write_tuned
from moerge_lab.tuning.on_ray import train_on_ray
from moerge_lab.tuning.request import Request
from moerge_lab.tuning.training import LOG, ROWS, Done, Job
from moerge_proto.records import RECORD_FILE, Training, read_record


class Summary(NamedTuple):
    """A finished tuning: trained parameters, tokens, mean loss of the first and last tenth, peak memory in bytes."""

    parameters: int
    tokens: int
    first_loss: float
    last_loss: float
    peak_memory: int | None


def tune(
    request: Request,
    out: Path,
    address: str | None,
    progress: Progress,
    say: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Trains a model and writes the folder `out`. The same request continues an interrupted run.

    Args:
        address: of a Ray cluster; None: a local Ray.
        say: gets other messages.

    Raises:
        MoergeError: `out` has other content, another run uses it, or the training failed.
    """
    out = out.absolute()
    with alone(work_folder(out)):
        work = work_folder(out) / request.name[:16]
        done, found = Done.read(work), out / RECORD_FILE
        if found.is_file() and (done is None or read_record(out) != request.record):
            raise MoergeError("contains another model", where=str(out), todo="name a new folder, or remove this one")
        if done is None:
            job = prepared(request, work)
            say("starting Ray" if address is None else f"joining Ray at {address}")
            _train(job, request, address, progress)
            done = Done.read(work)
            if done is None:
                raise MoergeError("the training wrote no result", where=str(work), todo=_shared(address))
        if not found.is_file():
            with progress.track(f"writing {out.name}", tensor_bytes(request.start(work)), "B") as tracker:
                write_tuned(request, work, done, out, tracker.advance)
        for path in work_folder(out).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
    return Summary(done.parameters, request.record.tokens, *losses(out / LOG), done.peak_memory)


def _shared(address: str | None) -> str:
    return "run the command again" if address is None else "name folders on storage that all nodes of the cluster share"


def prepared(request: Request, work: Path) -> Job:
    """The training of a request; writes its rows, and a new model, to the work folder."""
    made, options = request.record, request.record.options
    with atomic_file(work / ROWS) as file:
        file.write(save({str(slot): rows for slot, rows in enumerate(request.rows)}))
    run = Run(
        request.steps,
        number(options, "rate"),
        accumulate=made.accumulate,
        seed=made.seed,
        bfloat16=made.precision == "bfloat16",
    )
    return Job(
        model=request.start(work),
        work=work,
        trains=request.trains,
        routing=request.routing,
        balance=request.balance,
        batch=whole(options, "batch", 1),
        weights=tuple(made.weights.values()),
        run=run,
    )


def _train(job: Job, request: Request, address: str | None, progress: Progress) -> None:
    """Trains, and shows the steps after those of an interrupted run; the start of Ray doesn't count for the rate."""
    made, log = request.record, job.work / LOG
    told = log.read_bytes().count(b"\n") - 1 if log.is_file() else 0
    left = request.steps - told
    with ExitStack() as shown:
        tracker: Tracker = NoProgress()

        def finished(steps: int) -> None:
            nonlocal told, tracker
            if steps <= told:
                return
            if told == request.steps - left:
                tracker = shown.enter_context(progress.track("training", left * _row(made), "tokens"))
            tracker.advance((steps - told) * _row(made))
            told = steps

        train_on_ray(job, made.workers, made.build.device, address, finished)


def _row(made: Training) -> int:
    """Tokens of a step."""
    return whole(made.options, "batch", 1) * made.context
