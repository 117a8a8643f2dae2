"""Benchmarks as the hub reads them: `.eval_results/*.yaml`.

The form is that of https://huggingface.co/docs/hub/eval-results. The hub shows results of registered datasets only.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from moerge.files import atomic_file
from moerge_proto.benchmarks import Benchmark, BenchmarkResult

HUB_FOLDER = ".eval_results"


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


def _yaml(known: Registered, result: BenchmarkResult) -> str:
    version = f", task version {result.task_version}" if result.task_version else ""
    notes = f"{result.metric} of {result.harness}{version}"
    return f"""\
- dataset:
    id: {known.dataset}
    task_id: {known.task_id}
  value: {100 * result.value:.2f}
  notes: {json.dumps(notes)}
"""
