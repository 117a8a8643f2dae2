"""A comparison's run: each model's missing tasks in a process of lm_eval, and the results that are there."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from pydantic_core import to_json

from moerge.benchmarks.comparison import Row, Score, best_expert, standard_error
from moerge.benchmarks.job import Answered, Job, Said
from moerge.benchmarks.models import Model, Precision
from moerge.benchmarks.questions import chance, data_digest, data_files, questions
from moerge.benchmarks.table import Comparison
from moerge.benchmarks.tasks import TASKS
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.progress import Progress
from moerge_proto.benchmarks import BenchmarkResult, results_json

Say = Callable[[str], None]
_LAST = 5
"""Lines of the log in an error."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run. `limit`: questions of each task; None: all."""

    data: Path | None
    limit: int | None = None
    seed: int = 0
    chat: bool = False
    backend: Literal["hf", "vllm"] = "hf"
    precision: Precision | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    batch_size: int | Literal["auto"] = 8
    confirm_unsafe_code: bool = False

    def arguments(self, model: Model) -> dict[str, str]:
        """Arguments of lm_eval's model class."""
        return {"pretrained": str(model.folder.resolve()), "dtype": self.precision or "auto"}


@dataclass(frozen=True)
class Asked:
    """A task's questions in this run: their number, the score of chance, and the digest of all data."""

    number: int
    chance: float
    digest: str


def asked(names: Sequence[str], settings: Settings) -> dict[str, Asked]:
    """Task -> what is asked. All questions are read, so that invalid data is an error before a model is loaded."""
    result = {}
    for name in names:
        items = questions(TASKS[name], settings.data)
        digest = data_digest(data_files(TASKS[name], settings.data))
        result[name] = Asked(len(items[: settings.limit]), chance(items[: settings.limit]), digest)
    return result


def run(
    models: Sequence[Model],
    tasks: Mapping[str, str | None],
    settings: Settings,
    out: Path,
    progress: Progress,
    say: Say,
) -> Comparison:
    """Runs what is missing in `out`, and compares.

    Args:
        tasks: task -> its own expert; None: the best one of the row.

    Raises:
        MoergeError: data is missing or invalid, `out` has results of other settings, or lm_eval failed.
    """
    known = asked(list(tasks), settings)
    for name, item in known.items():
        if TASKS[name].digest not in (None, item.digest):
            say(f"note: the data of {name} isn't the public set of `moerge benchmark fetch`: {item.digest}")
    missing = {
        model.name: [name for name in tasks if not _is_done(out, model, name, settings, known)] for model in models
    }
    left, begun, ended = sum(map(len, missing.values())), time.monotonic(), 0
    for model in models:
        if names := missing[model.name]:
            _answer(model, names, settings, known, out, progress)
            ended += len(names)
            left -= len(names)
            if left:
                minutes = (time.monotonic() - begun) / ended * left / 60
                say(f"{model.name} has answered; about {minutes:.0f} min for the {left} tasks that are left")
    scores = {model.name: {name: _score(out, model, name, settings, known[name]) for name in tasks} for model in models}
    experts = [model.name for model in models if model.role == "expert"]
    seed = next((model.name for model in models if model.role == "seed"), None)
    rows = []
    for name, own in tasks.items():
        of_task = {model: values[name] for model, values in scores.items()}
        rows.append(Row(name, known[name].chance, own or best_expert(experts, of_task), own is not None, of_task, seed))
    result = Comparison(models, rows, str(out))
    for model in models:
        with atomic_file(out / f"{model.name}.results.json") as file:
            file.write(results_json([score.result for score in scores[model.name].values()]))
    with atomic_file(out / "table.json") as file:
        file.write(to_json(result.to_json(), indent=1) + b"\n")
    return result


def _folder(out: Path, model: Model) -> Path:
    return out / "raw" / model.name


def _key(model: Model, name: str, settings: Settings, known: Asked) -> dict[str, object]:
    """What determines a result; the device and the batch size change its rounding only."""
    return {
        "model": model.identity,
        "data": known.digest,
        "harness": _harness(),
        "limit": settings.limit,
        "seed": settings.seed,
        "chat": settings.chat and TASKS[name].is_chat,
        "backend": settings.backend,
        "precision": settings.precision,
    }


def _is_done(out: Path, model: Model, name: str, settings: Settings, known: Mapping[str, Asked]) -> bool:
    """Tell whether the result is there; MoergeError if it is one of another key."""
    folder = _folder(out, model)
    if not (folder / f"{name}.json").is_file():
        return False
    there = json.loads((folder / f"{name}.key.json").read_bytes())
    key = _key(model, name, settings, known[name])
    if differ := [field for field, value in key.items() if there.get(field) != value]:
        found = ", ".join(f"{field} {there.get(field)!r} instead of {key[field]!r}" for field in differ)
        todo = f"name another folder, or remove {folder}"
        raise MoergeError(f"has {name} of {model.name} with {found}", where=f"`out` {out}", todo=todo)
    return True


def _answer(
    model: Model, names: Sequence[str], settings: Settings, known: Mapping[str, Asked], out: Path, progress: Progress
) -> None:
    folder = _folder(out, model)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with atomic_file(folder / f"{name}.key.json") as file:
            file.write(to_json(_key(model, name, settings, known[name]), indent=1))
    job = Job(
        backend=settings.backend,
        model=settings.arguments(model),
        tasks=tuple(names),
        data=None if settings.data is None else str(settings.data.resolve()),
        out=str(folder.resolve()),
        limit=settings.limit,
        seed=settings.seed,
        batch_size=settings.batch_size,
        device=settings.device,
        chat=settings.chat,
        confirm_unsafe_code=settings.confirm_unsafe_code,
    )
    path, log = folder / "job.json", folder / "log"
    with atomic_file(path) as file:
        file.write(job.model_dump_json(indent=1).encode())
    error = _follow([sys.executable, "-m", "moerge.benchmarks.child", str(path)], log, model, known, progress)
    if error is not None:
        raise MoergeError(f"{model.name}, {error.task}: {error.error}", where=error.where, todo=error.todo)
    if absent := [name for name in names if not (folder / f"{name}.json").is_file()]:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        last = "\n  ".join(lines[-_LAST:])
        raise MoergeError(f"lm_eval failed at {absent[0]} of {model.name}:\n  {last}", where=str(log))


def _follow(
    command: Sequence[str], log: Path, model: Model, known: Mapping[str, Asked], progress: Progress
) -> Said | None:
    """Runs the process to its end, and shows its progress; returns the error that it reported."""
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUTF8": "1",
    }  # fmt: skip
    error, current, shown = None, "", 0
    with log.open("wb") as lines, ExitStack() as bar:
        process = subprocess.Popen(  # noqa: S603  # no shell
            command, stdout=subprocess.PIPE, stderr=lines, env=environment, start_new_session=True
        )
        try:
            assert process.stdout is not None  # noqa: S101  # of a pipe
            for line in process.stdout:
                try:
                    said = Said.model_validate_json(line)
                except ValidationError:
                    continue  # of a library
                if said.error:
                    error = said
                    continue
                if said.task != current:
                    bar.close()
                    current, shown = said.task, 0
                    track = progress.track(f"{model.name}: {current}", known[current].number, "questions")
                    tracker = bar.enter_context(track)
                done = known[current].number * said.done // max(said.total, 1)
                tracker.advance(done - shown)
                shown = done
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return error


def _score(out: Path, model: Model, name: str, settings: Settings, known: Asked) -> Score:
    path = _folder(out, model) / f"{name}.json"
    try:
        answered = Answered.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise MoergeError(f"can't be read: {error}", where=str(path), todo="remove it, and run again") from error
    values = answered.values
    result = BenchmarkResult(
        task=name,
        metric=TASKS[name].metric,
        value=sum(values) / len(values),
        standard_error=standard_error(values),
        questions=len(values),
        task_version=f"{answered.version}+chat" if settings.chat and TASKS[name].is_chat else answered.version,
        limit=settings.limit,
        seed=settings.seed,
        data=known.digest,
        harness=_harness(),
    )
    return Score(result, values)


def _harness() -> str:
    return f"lm_eval {version('lm_eval')}"
