"""Results of one model and task, and what determines them, in the folder of a run."""

import json
from importlib.metadata import version
from pathlib import Path

from moerge.errors import MoergeError
from moerge_lab.benchmarks.comparison import Score, standard_error
from moerge_lab.benchmarks.models import Model
from moerge_lab.benchmarks.settings import Asked, Settings
from moerge_lab.benchmarks.tasks import TASKS, Task
from moerge_proto.evaluations import TaskResult

KEY = "key.json"
_DIGESTS = ("model", "data")


def folder(out: Path, model: Model, name: str) -> Path:
    """The folder of a task's results: lm_eval's files, and their key."""
    return out / "raw" / model.name / name


def key(model: Model, name: str, settings: Settings, known: Asked) -> dict[str, object]:
    """The inputs that determine a result; the device and the batch size change its rounding only."""
    return {
        "model": model.identity,
        "data": known.digest,
        "harness": _harness(),
        "limit": settings.limit,
        "seed": settings.seed,
        "chat": settings.chat and TASKS[name].is_written,
        "answer_tokens": settings.answer_tokens if TASKS[name].is_written else None,
        "backend": settings.backend,
        "precision": settings.precision,
    }


def is_done(out: Path, model: Model, name: str, settings: Settings, known: Asked) -> bool:
    """Tell whether the result is there; MoergeError if it is one of another key."""
    place = folder(out, model, name)
    if not place.exists():
        return False
    there = json.loads((place / KEY).read_bytes())
    for field, value in key(model, name, settings, known).items():
        if there.get(field) != value:
            found = f"another {field}" if field in _DIGESTS else f"{field} {there.get(field)!r} instead of {value!r}"
            todo = f"name another folder, or remove {place}"
            raise MoergeError(f"has {name} of {model.name} with {found}", where=f"`out` {out}", todo=todo)
    return True


def score(out: Path, model: Model, name: str, settings: Settings, known: Asked) -> Score:
    """The score of a result that is done. MoergeError if its files are damaged."""
    place, task = folder(out, model, name), TASKS[name]
    try:
        [whole], [samples] = place.glob("results_*.json"), place.glob("samples_*.jsonl")
        results = json.loads(whole.read_bytes())
        rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").split("\n") if line]
        values = [float(row[task.metric]) for row in sorted(rows, key=lambda row: int(row["doc_id"]))]
        metric = next(text for text in results["results"][name] if text.startswith(f"{task.metric},"))
        defined = str(results["versions"][name])
    except (OSError, ValueError, LookupError, StopIteration) as error:
        raise MoergeError(f"can't be read: {error}", where=str(place), todo="remove it, and run again") from error
    result = TaskResult(
        task=name,
        metric=metric,
        value=sum(values) / len(values),
        standard_error=standard_error(values),
        questions=len(values),
        task_version=_variant(defined, task, settings),
        limit=settings.limit,
        seed=settings.seed,
        data=known.digest,
        harness=_measured_by(settings),
    )
    return Score(result, values)


def _variant(defined: str, task: Task, settings: Settings) -> str:
    """The version of a task's definition, with the settings that make its scores others."""
    chat = "+chat" if settings.chat and task.is_written else ""
    tokens = f"+{settings.answer_tokens} tokens" if settings.answer_tokens and task.is_written else ""
    return defined + chat + tokens


def _measured_by(settings: Settings) -> str:
    """The harness, with the backend and precision that aren't the defaults: scores of others aren't compared."""
    backend = settings.backend if settings.backend != "hf" else None
    return " ".join(filter(None, [_harness(), backend, settings.precision]))


def _harness() -> str:
    return f"lm_eval {version('lm_eval')}"
