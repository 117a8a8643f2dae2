"""The process of lm_eval: its job, its progress, its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError
from pydantic_core import to_json

from moerge.benchmarks.job import Job, Said
from moerge.benchmarks.models import Model
from moerge.benchmarks.results import folder, key
from moerge.benchmarks.settings import Asked, Settings
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.progress import Progress

_LAST = 5
"""Lines of the log in an error."""


def answer(
    model: Model, names: Sequence[str], settings: Settings, known: Mapping[str, Asked], out: Path, progress: Progress
) -> None:
    """Runs a model's tasks.

    Raises:
        MoergeError: lm_eval failed; results of the tasks before are there.
    """
    place = folder(out, model)
    place.mkdir(parents=True, exist_ok=True)
    for name in names:
        with atomic_file(place / f"{name}.key.json") as file:
            file.write(to_json(key(model, name, settings, known[name]), indent=1))
    job = Job(
        backend=settings.backend,
        model=settings.arguments(model),
        tasks=tuple(names),
        data=None if settings.data is None else str(settings.data.resolve()),
        out=str(place.resolve()),
        limit=settings.limit,
        seed=settings.seed,
        batch_size=settings.batch_size,
        device=settings.device,
        chat=settings.chat,
        answer_tokens=settings.answer_tokens,
    )
    path, log = place / "job.json", place / "log"
    with atomic_file(path) as file:
        file.write(job.model_dump_json(indent=1).encode())
    numbers = {name: known[name].number for name in names}
    command = [sys.executable, "-m", "moerge.benchmarks.child", str(path)]
    if (error := follow(command, log, model.name, numbers, progress)) is not None:
        raise MoergeError(f"{model.name}, {error.task}: {error.error}", where=error.where, todo=error.todo)
    if absent := [name for name in names if not (place / f"{name}.json").is_file()]:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        last = "\n  ".join(lines[-_LAST:])
        raise MoergeError(f"lm_eval failed at {absent[0]} of {model.name}:\n  {last}", where=str(log))


def follow(
    command: Sequence[str], log: Path, title: str, numbers: Mapping[str, int], progress: Progress
) -> Said | None:
    """Runs a process to its end, shows its progress, and returns the error that it reported.

    `numbers`: of each task's questions.
    """
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUTF8": "1",
    }  # fmt: skip
    error, current, shown = None, "", 0
    with log.open("wb") as lines, _ended(command, environment, lines) as process, ExitStack() as bar:
        for line in process.stdout or ():
            try:
                said = Said.model_validate_json(line)
            except ValidationError:
                continue  # of a library
            if said.error:
                error = said
            elif said.task in numbers:
                if said.task != current:
                    bar.close()
                    current, shown = said.task, 0
                    tracker = bar.enter_context(progress.track(f"{title}: {current}", numbers[current], "questions"))
                done = numbers[current] * said.done // max(said.total, 1)
                tracker.advance(max(done - shown, 0))
                shown = max(done, shown)
    return error


@contextmanager
def _ended(
    command: Sequence[str], environment: Mapping[str, str], log: BinaryIO
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of a session of its own, whose processes are all killed at the end."""
    with subprocess.Popen(  # noqa: S603  # no shell
        command, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
