"""lm_eval's own command, in a process of its own: a model's answers to the questions of a task."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pydantic_core import to_json

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge_lab.benchmarks.models import Model
from moerge_lab.benchmarks.results import KEY, folder, key
from moerge_lab.benchmarks.settings import Asked, Settings
from moerge_lab.benchmarks.tasks import TASK_FILES, TASKS

_LAST = 5
"""Lines of the log in an error."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"}


def answer(model: Model, name: str, settings: Settings, known: Asked, out: Path) -> None:
    """Runs a task. The folder of its results appears when all answers are there.

    Raises:
        MoergeError: lm_eval failed; its log stays.
    """
    place = folder(out, model, name)
    part, log = place.with_suffix(".part"), place.with_suffix(".log")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with log.open("wb") as lines:
        done = subprocess.run(  # noqa: S603  # no shell
            [sys.executable, "-m", "lm_eval", "run", *arguments(model, name, settings, part)],
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=lines,
            env={**os.environ, **_OFFLINE},
            check=False,
        )
    if done.returncode or not list(part.glob("samples_*")):
        text = log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = "\n  ".join([line for line in text if line.strip()][-_LAST:])
        raise MoergeError(f"lm_eval failed at {name} of {model.name}:\n  {last}", where=str(log))
    with atomic_file(part / KEY) as file:
        file.write(to_json(key(model, name, settings, known), indent=1))
    part.rename(place)


def arguments(model: Model, name: str, settings: Settings, results: Path) -> list[str]:
    """The options of `lm_eval run`."""
    weights = {"pretrained": str(model.folder.resolve()), "dtype": settings.precision or "auto"}
    data = {} if settings.data is None else {"data": str(settings.data.resolve())}
    named = {
        "model": settings.backend,
        "model_args": to_json(weights).decode(),
        "device": settings.device,
        "batch_size": str(settings.batch_size),
        "tasks": name,
        "include_path": str(TASK_FILES),
        "metadata": to_json(data).decode(),
        "seed": str(settings.seed),
        "output_path": str(results / "results.json"),
    }
    if settings.limit is not None:
        named["limit"] = str(settings.limit)
    if settings.answer_tokens is not None and TASKS[name].is_written:
        named["gen_kwargs"] = to_json({"max_gen_toks": settings.answer_tokens}).decode()
    flags = ["log_samples", *(["apply_chat_template"] if settings.chat and TASKS[name].is_written else [])]
    return [*(f"--{option}={value}" for option, value in named.items()), *(f"--{flag}" for flag in flags)]
