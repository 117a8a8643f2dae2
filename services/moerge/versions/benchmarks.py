"""Benchmarks of versions: files of results, and two versions' results compared where they were measured alike."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from moerge.errors import MoergeError
from moerge.settings import read_text
from moerge_proto.benchmarks import Benchmark, BenchmarkResult, read_results
from moerge_proto.messages import plainly

_MOST_DIGITS = 6
_Conditions = tuple[object, ...]


def results_in(path: Path) -> list[BenchmarkResult]:
    """The results of a file. MoergeError: it is unreadable, or a result is invalid; names the field."""
    try:
        return read_results(read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        problem = ": ".join([".".join(map(str, first["loc"])), plainly(first)]).removeprefix(": ")
        todo = "give a JSON list of results; docs/operating.md has their fields under Benchmarks"
        raise MoergeError(problem, where=str(path), todo=todo) from error


@dataclass(frozen=True)
class BenchmarkChange:
    """A result on two versions, by the same reporter and under the same conditions.

    `error`: the standard error of the difference, as of independent samples; None if one of the two is unknown.
    """

    before: Benchmark
    after: Benchmark

    @property
    def gain(self) -> float:
        """The improvement, in the metric's unit."""
        difference = self.after.result.value - self.before.result.value
        return difference if self.after.result.higher_is_better else -difference

    @property
    def error(self) -> float | None:
        errors = [row.result.standard_error for row in (self.before, self.after)]
        known = [error for error in errors if error is not None]
        return math.hypot(*known) if len(known) == len(errors) else None

    def falls_by_more_than(self, errors: float) -> bool:
        """Tell whether the result is worse by more than that many standard errors; False if these are unknown."""
        return self.error is not None and -self.gain > errors * self.error

    def rises_by_more_than(self, errors: float) -> bool:
        """Likewise, better."""
        return self.error is not None and self.gain > errors * self.error


def benchmark_changes(before: Iterable[Benchmark], after: Iterable[Benchmark]) -> list[BenchmarkChange]:
    """The active results of `after` that `before` has too, under the same conditions; in the order of `after`."""
    earlier = {_conditions(row): row for row in before if row.active}
    pairs = ((earlier.get(_conditions(row)), row) for row in after if row.active)
    return [BenchmarkChange(old, new) for old, new in pairs if old is not None]


def benchmark_name(row: Benchmark) -> str:
    """Task and metric of a result."""
    return f"{row.result.task} ({row.result.metric})"


def figure(value: float, error: float | None) -> str:
    """A value with its standard error, in the metric's unit, both to the error's second digit."""
    if not error:
        return f"{value:.4g}" + ("" if error is None else " ± 0")
    digits = min(max(1 - math.floor(math.log10(error)), 0), _MOST_DIGITS)
    return f"{round(value, digits) + 0.0:.{digits}f} ± {error:.{digits}f}"


def _conditions(row: Benchmark) -> _Conditions:
    """All that two comparable results have in common: reporter, task, metric, questions, harness."""
    result = row.result
    measured = result.model_dump(exclude={"value", "standard_error"})
    return row.owner, *measured.values()
