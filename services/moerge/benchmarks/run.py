"""A comparison's run: each model's missing tasks, and the table of all."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic_core import to_json

from moerge.benchmarks.comparison import Row, best_expert
from moerge.benchmarks.models import Model
from moerge.benchmarks.process import answer
from moerge.benchmarks.results import is_done, score
from moerge.benchmarks.settings import Asked, Settings, asked
from moerge.benchmarks.table import Comparison
from moerge.benchmarks.tasks import TASKS
from moerge.files import alone, atomic_file
from moerge.progress import Progress
from moerge_proto.benchmarks import results_json

Say = Callable[[str], None]
_RUN = "docs/benchmarks.md has the command that runs them in a container"


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
    missing = [(model, [name for name in tasks if not is_done(out, model, name, settings, known)]) for model in models]
    left, begun, ended = sum(len(names) for _, names in missing), time.monotonic(), 0
    with alone(out / "raw"):
        for model, names in missing:
            if names:
                answer(model, names, settings, known, out, progress)
            ended += len(names)
            left -= len(names)
            if names and left:
                minutes = (time.monotonic() - begun) / ended * left / 60
                say(f"{model.name} has answered; about {minutes:.0f} min for the {left} tasks that are left")
    for name in tasks:
        if not TASKS[name].is_scored:
            where = out / "raw" / "NAME" / f"{name}.json"
            say(f"note: {name} has no score here: moerge doesn't run programs of models. They are in {where}; {_RUN}")
    return _compared(models, tasks, settings, known, out)


def _compared(
    models: Sequence[Model],
    tasks: Mapping[str, str | None],
    settings: Settings,
    known: Mapping[str, Asked],
    out: Path,
) -> Comparison:
    """The table of results that are all there; writes it, and a file of results for each model."""
    names = [name for name in tasks if TASKS[name].is_scored]
    scores = {model.name: {name: score(out, model, name, settings, known[name]) for name in names} for model in models}
    experts = [model.name for model in models if model.role == "expert"]
    seed = next((model.name for model in models if model.role == "seed"), None)
    rows = []
    for name in names:
        own = tasks[name]
        of_task = {model: values[name] for model, values in scores.items()}
        rows.append(Row(name, known[name].chance, own or best_expert(experts, of_task), own is not None, of_task, seed))
    result = Comparison(models, rows, str(out))
    for model in models if names else ():
        with atomic_file(out / f"{model.name}.results.json") as file:
            file.write(results_json([item.result for item in scores[model.name].values()]))
    with atomic_file(out / "table.json") as file:
        file.write(to_json(result.to_json(), indent=1) + b"\n")
    return result
