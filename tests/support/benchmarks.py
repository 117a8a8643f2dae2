"""Questions and results of benchmarks."""

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moerge_proto.benchmarks import Benchmark, BenchmarkResult, NewBenchmarks


def result(task: str = "arc_easy", value: float = 0.5, error: float | None = 0.02, **change: Any) -> BenchmarkResult:
    """A result on 400 questions."""
    sent = {
        "task": task, "metric": "acc", "value": value, "standard_error": error, "questions": 400,
        "task_version": "1.0", "limit": 400, "seed": 0, "data": "a" * 64, "harness": "lm_eval 0.4.13",
    }  # fmt: skip
    return BenchmarkResult.model_validate(sent | change)


def reported(
    task: str = "arc_easy", value: float = 0.5, owner: str | None = None, *, active: bool = True, **change: Any
) -> Benchmark:
    """A reported result; without `owner`, by the operator."""
    return Benchmark(
        number=1, digest="0" * 64, version=1, owner=owner, active=active, created=datetime(2026, 11, 25, tzinfo=UTC),
        result=result(task, value, **change),
    )  # fmt: skip


def results_of(number: int, *results: BenchmarkResult) -> NewBenchmarks:
    """A report of a version's results, by default of one."""
    return NewBenchmarks(number=number, results=list(results) or [result()])


def questions(path: Path, count: int) -> None:
    """Writes a file of random questions with four choices each."""
    choose = random.Random(path.name)  # noqa: S311  # no secret
    letters = "abcdefghijklmnopqrstuvwxyz "
    with path.open("w", encoding="utf-8") as out:
        for _ in range(count):
            texts = ["".join(choose.choices(letters, k=choose.randint(5, 30))) for _ in range(5)]
            record = {"question": texts[0], "choices": texts[1:], "answer": choose.randrange(4)}
            out.write(json.dumps(record) + "\n")
