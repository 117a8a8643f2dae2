"""Evaluations of versions: files of results, and two versions' scores compared where they were measured alike."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from moerge.errors import MoergeError
from moerge.settings import read_text
from moerge_proto.evaluations import RESULTS, Evaluation, TaskResult
from moerge_proto.messages import plainly

_MOST_DIGITS = 6


def results_in(path: Path) -> list[TaskResult]:
    """The results of a file. MoergeError: it is unreadable, or a result is invalid; names the field."""
    try:
        return RESULTS.validate_json(read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        problem = ": ".join([".".join(map(str, first["loc"])), plainly(first)]).removeprefix(": ")
        todo = "give a JSON list of results; docs/operators/versions.md has their fields under Results on tasks"
        raise MoergeError(problem, where=str(path), todo=todo) from error


@dataclass(frozen=True)
class Change:
    """A score on two versions, by the same reporter and under the same conditions."""

    before: Evaluation
    after: Evaluation

    def __str__(self) -> str:
        figures = " to ".join(figure(row.score.value, row.score.standard_error) for row in (self.before, self.after))
        return f"{self.after.score.name}, reported by {self.after.reporter}, from {figures}"

    @property
    def difference(self) -> float:
        return self.after.score.value - self.before.score.value

    @property
    def gain(self) -> float:
        """The improvement, in the score's unit."""
        return self.difference if self.after.score.higher_is_better else -self.difference

    @property
    def error(self) -> float | None:
        """The standard error of the difference, as of independent samples; None if one of the two is unknown."""
        before, after = self.before.score.standard_error, self.after.score.standard_error
        return None if before is None or after is None else math.hypot(before, after)

    def allowed(self, points: float, errors: float) -> float | None:
        """The loss of so many points on a domain, or standard errors on a task; None if the error is unknown."""
        if self.after.score.kind == "perplexity":
            return points
        return None if self.error is None else errors * self.error


def changes_between(before: Iterable[Evaluation], after: Iterable[Evaluation]) -> list[Change]:
    """The scores of `after` that `before` has too, under the same conditions; in the order of `after`."""
    earlier = {(row.owner, *row.score.conditions): row for row in before}
    pairs = ((earlier.get((row.owner, *row.score.conditions)), row) for row in after)
    return [Change(old, new) for old, new in pairs if old is not None]


def on_tasks(
    before: Iterable[Evaluation], after: Iterable[Evaluation]
) -> list[tuple[Evaluation, TaskResult, Change | None]]:
    """The results of `after` on tasks, each with its change if `before` has it too."""
    rows = list(after)
    changes = {change.after.number: change for change in changes_between(before, rows)}
    return [(row, row.score, changes.get(row.number)) for row in rows if isinstance(row.score, TaskResult)]


def figure(value: float, error: float | None) -> str:
    """A value with its standard error, in the metric's unit, both to the error's second digit."""
    if not error:
        return f"{value:.4g}" + ("" if error is None else " ± 0")
    digits = min(max(1 - math.floor(math.log10(error)), 0), _MOST_DIGITS)
    return f"{round(value, digits) + 0.0:.{digits}f} ± {error:.{digits}f}"
