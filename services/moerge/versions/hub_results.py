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
    """A dataset that the hub registered as a benchmark, its task's id, and the harness' metric."""

    dataset: str
    task_id: str
    metric: str


REGISTERED = {
    "gsm8k": Registered("openai/gsm8k", "gsm8k", "exact_match,strict-match"),
    "mmlu_pro": Registered("TIGER-Lab/MMLU-Pro", "mmlu_pro", "exact_match,custom-extract"),
}
"""Task of lm_eval -> registered benchmark. Its metric is a share of the questions, which the hub has in percent."""


def write_hub_results(rows: Sequence[Benchmark], folder: Path) -> list[str]:
    """Writes the operators' results of registered benchmarks; returns the tasks.

    Left out are owners' results, and those over a limited number of questions.
    """
    written = list[str]()
    for row in rows:
        known, result = REGISTERED.get(row.result.task), row.result
        if known is None or row.owner is not None or result.metric != known.metric:
            continue
        if result.limit is None and 0 <= result.value <= 1:
            with atomic_file(folder / HUB_FOLDER / f"{result.task}.yaml") as out:
                out.write(_yaml(known, result).encode())
            written.append(result.task)
    return written


def _yaml(known: Registered, result: BenchmarkResult) -> str:
    notes = result.harness + (f", task version {result.task_version}" if result.task_version else "")
    return f"""\
- dataset:
    id: {known.dataset}
    task_id: {known.task_id}
  value: {100 * result.value:.2f}
  notes: {json.dumps(notes)}
"""
