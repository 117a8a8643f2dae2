"""A comparison's run: the missing tasks of each model, and the table of all."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic_core import to_json

from moerge.files import alone, atomic_file
from moerge.progress import Progress
from moerge_lab.benchmarks.comparison import Row, best_expert
from moerge_lab.benchmarks.harness import answer
from moerge_lab.benchmarks.models import Model
from moerge_lab.benchmarks.results import is_done, score
from moerge_lab.benchmarks.settings import Asked, Settings, asked
from moerge_lab.benchmarks.table import Comparison
from moerge_lab.benchmarks.tasks import TASKS
from moerge_proto.evaluations import RESULTS

Say = Callable[[str], None]


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
        if TASKS[name].digest != item.digest and TASKS[name].digest is not None:
            say(f"note: the data of {name} isn't the public set of `moerge benchmark fetch`: {item.digest}")
    pairs = [(model, name) for model in models for name in tasks]
    missing = [(model, name) for model, name in pairs if not is_done(out, model, name, settings, known[name])]
    questions = sum(known[name].number for _, name in missing)
    if missing:
        with alone(out / "raw"), progress.track("benchmarks", questions, "questions") as tracker:
            for model, name in missing:
                answer(model, name, settings, known[name], out)
                tracker.advance(known[name].number)
    return _compared(models, tasks, settings, known, out)


def _compared(
    models: Sequence[Model],
    tasks: Mapping[str, str | None],
    settings: Settings,
    known: Mapping[str, Asked],
    out: Path,
) -> Comparison:
    """The table of results that are all there; writes it, and a file of results for each model."""
    scores = {model.name: {name: score(out, model, name, settings, known[name]) for name in tasks} for model in models}
    experts = [model.name for model in models if model.role == "expert"]
    seed = next((model.name for model in models if model.role == "seed"), None)
    rows = []
    for name, own in tasks.items():
        of_task = {model: values[name] for model, values in scores.items()}
        rows.append(Row(name, known[name].chance, own or best_expert(experts, of_task), own is not None, of_task, seed))
    result = Comparison(models, rows, str(out))
    for model in models:
        with atomic_file(out / f"{model.name}.results.json") as file:
            file.write(RESULTS.dump_json([item.result for item in scores[model.name].values()], indent=1) + b"\n")
    with atomic_file(out / "table.json") as file:
        file.write(to_json(result.to_json(), indent=1) + b"\n")
    return result
