"""Results of one model and task, and what determines them, in the folder of a run."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from moerge.benchmarks.comparison import Score, standard_error
from moerge.benchmarks.job import Answered
from moerge.benchmarks.models import Model
from moerge.benchmarks.settings import Asked, Settings
from moerge.benchmarks.tasks import TASKS, Task
from moerge.errors import MoergeError
from moerge_proto.benchmarks import BenchmarkResult

_DIGESTS = ("model", "data")


def folder(out: Path, model: Model) -> Path:
    """The folder of a model's results: of each task an `Answered` or programs, its key, and lm_eval's results."""
    return out / "raw" / model.name


def key(model: Model, name: str, settings: Settings, known: Asked) -> dict[str, object]:
    """The inputs that determine a result; the device and the batch size change its rounding only."""
    return {
        "model": model.identity,
        "data": known.digest,
        "harness": _harness(),
        "limit": settings.limit,
        "seed": settings.seed,
        "chat": settings.chat and TASKS[name].is_chat,
        "answer_tokens": settings.answer_tokens if TASKS[name].is_written else None,
        "backend": settings.backend,
        "precision": settings.precision,
    }


def is_done(out: Path, model: Model, name: str, settings: Settings, known: Mapping[str, Asked]) -> bool:
    """Tell whether the result is there; MoergeError if it is one of another key."""
    place = folder(out, model)
    if not (place / f"{name}.json").is_file():
        return False
    there = json.loads((place / f"{name}.key.json").read_bytes())
    for field, value in key(model, name, settings, known[name]).items():
        if there.get(field) != value:
            found = f"another {field}" if field in _DIGESTS else f"{field} {there.get(field)!r} instead of {value!r}"
            todo = f"name another folder, or remove {place}"
            raise MoergeError(f"has {name} of {model.name} with {found}", where=f"`out` {out}", todo=todo)
    return True


def score(out: Path, model: Model, name: str, settings: Settings, known: Asked) -> Score:
    """The score of a result that is done. MoergeError if its file is damaged."""
    path = folder(out, model) / f"{name}.json"
    try:
        answered = Answered.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise MoergeError(f"can't be read: {error}", where=str(path), todo="remove it, and run again") from error
    values = answered.values
    result = BenchmarkResult(
        task=name,
        metric=answered.metric,
        value=sum(values) / len(values),
        standard_error=standard_error(values),
        questions=len(values),
        task_version=_variant(answered.version, TASKS[name], settings),
        limit=settings.limit,
        seed=settings.seed,
        data=known.digest,
        harness=_measured_by(settings),
    )
    return Score(result, values)


def _variant(defined: str, task: Task, settings: Settings) -> str:
    """The version of a task's definition, with the settings that make its scores others."""
    chat = "+chat" if settings.chat and task.is_chat else ""
    tokens = f"+{settings.answer_tokens} tokens" if settings.answer_tokens and task.is_written else ""
    return defined + chat + tokens


def _measured_by(settings: Settings) -> str:
    """The harness, with the backend and precision that aren't the defaults: scores of others aren't compared."""
    backend = settings.backend if settings.backend != "hf" else None
    return " ".join(filter(None, [_harness(), backend, settings.precision]))


def _harness() -> str:
    return f"lm_eval {version('lm_eval')}"
