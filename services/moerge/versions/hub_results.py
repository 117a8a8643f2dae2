"""Benchmarks as the hub reads them: `.eval_results/*.yaml`.

The form is that of https://huggingface.co/docs/hub/eval-results. The hub shows results of registered datasets only.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge_proto.benchmarks import Benchmark, BenchmarkResult

HUB_FOLDER = ".eval_results"
_FORM = """\
- dataset:
    id: {known.dataset}
    task_id: {known.task_id}
  value: {value}
  notes: {notes}
"""


class Registered(NamedTuple):
    """A dataset that the hub registered as a benchmark, its task's id, and the metrics, the preferred first."""

    dataset: str
    task_id: str
    metrics: tuple[str, ...]


REGISTERED = {
    "gsm8k": Registered("openai/gsm8k", "gsm8k", ("exact_match,strict-match", "exact_match,last-number")),
    "mmlu_pro": Registered("TIGER-Lab/MMLU-Pro", "mmlu_pro", ("exact_match,custom-extract",)),
}
"""Task -> registered benchmark. Its metrics are shares of the questions, which the hub has in percent."""


def write_hub_results(rows: Sequence[Benchmark], folder: Path) -> list[str]:
    """Writes the operators' results of registered benchmarks; returns the tasks.

    Left out are owners' results, and those over a limited number of questions.
    """
    whole = {
        (row.result.task, row.result.metric): row.result
        for row in rows
        if row.owner is None and row.result.limit is None and 0 <= row.result.value <= 1
    }
    written = list[str]()
    for task, known in REGISTERED.items():
        result = next((whole[task, metric] for metric in known.metrics if (task, metric) in whole), None)
        if result is not None:
            with atomic_file(folder / HUB_FOLDER / f"{task}.yaml") as out:
                out.write(_yaml(known, result).encode())
            written.append(task)
    return written


def hub_results(folder: Path) -> list[str]:
    """The names of the results in a folder that `write_hub_results` has written.

    Raises:
        MoergeError: names other files beside them.
    """
    paths = sorted(path for path in (folder / HUB_FOLDER).rglob("*") if not path.is_dir())
    if unknown := [path.relative_to(folder).as_posix() for path in paths if not _is_result(path)]:
        what = f"not results of the hub's benchmarks as `moerge pull --hub-results` writes them: {', '.join(unknown)}"
        raise MoergeError(what, where=str(folder), todo="remove them, or pull again")
    return [f"{HUB_FOLDER}/{path.name}" for path in paths]


def _is_result(path: Path) -> bool:
    known = REGISTERED.get(path.stem)
    if known is None or path.name != f"{path.stem}.yaml" or path.parent.name != HUB_FOLDER:
        return False
    form = re.escape(_FORM.format(known=known, value="VALUE", notes="NOTES"))
    form = form.replace("VALUE", r"-?[0-9]+\.[0-9]{2}").replace("NOTES", r'"[^\n]*"')
    return re.fullmatch(form, path.read_text(encoding="utf-8", errors="replace")) is not None


def _yaml(known: Registered, result: BenchmarkResult) -> str:
    version = f", task version {result.task_version}" if result.task_version else ""
    notes = f"{result.metric} of {result.harness}{version}"
    return _FORM.format(known=known, value=f"{100 * result.value:.2f}", notes=json.dumps(notes))
