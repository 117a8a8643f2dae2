"""The process of lm_eval: one model, its tasks, their results as JSON. Nothing else of moerge imports lm_eval.

Run as `python -m moerge.benchmarks.child JOB`, with the path of a `Job`. Standard output has a JSON line for each
`Said`; the log is on standard error.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tqdm  # type: ignore[import-untyped]

from moerge.benchmarks.job import Answered, Job, Said
from moerge.benchmarks.tasks import TASK_FILES, TASKS
from moerge.errors import MoergeError
from moerge.files import atomic_file

_DIE_WITH_PARENT = 1
_RUNNING = "Running "
"""How bars of lm_eval begin that count a model's requests."""
_BOOTSTRAPS = 100  # unused: errors of means have a formula


def main(path: Path) -> int:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # a killed command leaves no process
    job = Job.model_validate_json(path.read_bytes())
    say = _speaker()
    current = ""
    tqdm.tqdm = _bar(lambda done, total: say(Said(task=current, done=done, total=total)))
    from lm_eval import simple_evaluate  # type: ignore[import-untyped]
    from lm_eval.api.registry import get_model  # type: ignore[import-untyped]
    from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]

    from moerge.documents.chat_templates import DATE
    from moerge.documents.template_environment import install
    from moerge.memory.machine import is_out_of_memory

    install(DATE)
    manager = TaskManager(include_defaults=False, include_path=str(TASK_FILES), metadata={"data": job.data})
    try:
        manager.load(list(job.tasks))  # before the model
        arguments = {"batch_size": job.batch_size, "device": job.device}
        model: Any = get_model(job.backend).create_from_arg_obj(job.model, arguments)
        for current in job.tasks:
            results: Any = simple_evaluate(
                model=model,
                tasks=[current],
                task_manager=manager,
                limit=job.limit,
                gen_kwargs=None if job.answer_tokens is None else {"max_gen_toks": job.answer_tokens},
                bootstrap_iters=_BOOTSTRAPS,
                apply_chat_template=job.chat and TASKS[current].is_chat,
                random_seed=job.seed,
                numpy_random_seed=job.seed,
                torch_random_seed=job.seed,
                fewshot_random_seed=job.seed,
            )
            _write(Path(job.out) / f"{current}.json", current, results)
    except MoergeError as error:
        say(Said(task=current, error=error.what, where=error.where, todo=error.todo))
        return 1
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        say(Said(task=current, error="not enough memory", where="memory", todo="a smaller `batch_size`"))
        return 1
    return 0


def _speaker() -> Callable[[Said], None]:
    """Writes messages to standard output; whatever else is printed goes to the log."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return lambda said: print(said.model_dump_json(exclude_defaults=True), file=out)


def _bar(say: Callable[[int, int], None]) -> type:
    class Bar(tqdm.tqdm):  # type: ignore[misc]
        """A bar that reports the requests of a model."""

        def update(self, n: float | None = 1) -> bool | None:
            result: bool | None = super().update(n)
            if str(self.desc).startswith(_RUNNING):
                say(int(self.n), int(self.total))
            return result

    return Bar


def _write(path: Path, name: str, results: Any) -> None:
    """An `Answered` or a list of programs, and beside it lm_eval's results with every answer."""
    from lm_eval.utils import handle_non_serializable  # type: ignore[import-untyped]

    metric = TASKS[name].metric
    printed = next(key for key in results["results"][name] if key.startswith(f"{metric},"))
    values = [sample[metric] for sample in sorted(results["samples"][name], key=lambda item: item["doc_id"])]
    with atomic_file(path.with_suffix(".lm_eval.json")) as out:
        out.write(json.dumps(results, default=handle_non_serializable, ensure_ascii=False, indent=1).encode())
    with atomic_file(path) as out:
        if not TASKS[name].is_scored:
            out.write(json.dumps(values, indent=1).encode())
            return
        version = str(results["versions"][name])
        out.write(Answered(version=version, metric=printed, values=tuple(values)).model_dump_json().encode())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
