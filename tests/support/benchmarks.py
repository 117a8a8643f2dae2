"""Results of benchmarks."""

from typing import Any

from moerge_proto.benchmarks import BenchmarkResult, NewBenchmarks


def result(task: str = "arc_easy", value: float = 0.5, error: float | None = 0.02, **change: Any) -> BenchmarkResult:
    """A result on 400 questions."""
    sent = {
        "task": task, "metric": "acc", "value": value, "standard_error": error, "questions": 400,
        "task_version": "1.0", "limit": 400, "seed": 0, "data": "a" * 64, "harness": "lm_eval 0.4.13",
    }  # fmt: skip
    return BenchmarkResult.model_validate(sent | change)


def results_of(number: int, *results: BenchmarkResult) -> NewBenchmarks:
    """A report of a version's results, by default of one."""
    return NewBenchmarks(number=number, results=list(results) or [result()])
