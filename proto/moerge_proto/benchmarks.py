"""Benchmarks: a model's results on public tasks, the file that has them, and reports of a version's results."""

from collections import Counter
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter

from moerge_proto.digests import Digest, digest_of
from moerge_proto.messages import Message, Whole

MAX_RESULTS = 1000
"""Results of one file."""
_MOST = 2**31 - 1
_MOST_VALUE = 1e15
TaskName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}$")]
MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+@,-]{0,99}$")]
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.:+/-]{0,99}$")]


class BenchmarkResult(Message):
    """A model's `value` of one `metric` on one task.

    `standard_error`: of the value; None if the harness gives none. `questions`: the number that was scored.
    `task_version`: of the task's definition; None if it has none. `limit`: the requested maximum of questions; None for
    all. `data`: SHA-256 of the file with the questions; None if the harness read them elsewhere. `harness`: the program
    and its version, such as "lm_eval 0.4.13".
    """

    task: TaskName
    metric: MetricName
    value: float = Field(ge=-_MOST_VALUE, le=_MOST_VALUE, allow_inf_nan=False)
    higher_is_better: bool = True
    standard_error: float | None = Field(default=None, ge=0, le=_MOST_VALUE, allow_inf_nan=False)
    questions: Whole = Field(ge=1, le=_MOST)
    task_version: Label | None = None
    limit: Whole | None = Field(default=None, ge=1, le=_MOST)
    seed: Whole = Field(ge=0, le=_MOST)
    data: Digest | None = None
    harness: Label


def _each_once(results: list[BenchmarkResult]) -> list[BenchmarkResult]:
    for (task, metric), count in Counter((result.task, result.metric) for result in results).items():
        if count > 1:
            raise ValueError(f"{count} results of {task}, {metric}; expected one")
    return results


Results = Annotated[list[BenchmarkResult], Field(min_length=1, max_length=MAX_RESULTS), AfterValidator(_each_once)]
"""The content of a results file: of one model, with one result of each task and metric."""
_RESULTS: TypeAdapter[list[BenchmarkResult]] = TypeAdapter(Results)


def read_results(text: str) -> list[BenchmarkResult]:
    """The results in a file's text, a JSON list. Raises ValidationError for another text."""
    return _RESULTS.validate_json(text)


def results_json(results: list[BenchmarkResult]) -> bytes:
    """The content of a results file. Raises ValidationError for results that a file can't have."""
    return _RESULTS.dump_json(_RESULTS.validate_python(results), indent=1) + b"\n"


class NewBenchmarks(Message):
    """A report of results of version `number`, by an operator or an owner."""

    number: int = Field(ge=1, le=_MOST)
    results: Results

    @property
    def digest(self) -> str:
        return digest_of(self.model_dump(mode="json"))


class Benchmark(Message):
    """A reported result of a version. `digest`: of its report. `owner`: who reported it; None: an operator.

    `active` is false after a later report of the same task and metric by the same reporter.
    """

    number: int
    digest: Digest
    version: int
    owner: str | None
    active: bool
    created: datetime
    result: BenchmarkResult

    @property
    def reporter(self) -> str:
        return self.owner or "operator"
