"""The comparison of versions with experts and seed, from the answers to each question."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moerge_proto.evaluations import TaskResult

_ERRORS = 2.0
"""Standard errors within which a score counts as chance."""


@dataclass(frozen=True)
class Score:
    """A model's result on a task, and its metric for each question, in order."""

    result: TaskResult
    values: Sequence[float]

    def above(self, chance: float) -> bool:
        return self.result.value - _ERRORS * (self.result.standard_error or 0) > chance


@dataclass(frozen=True)
class Difference:
    """A version against the task's own expert. Both answered the same questions, so errors are of the differences.

    Attributes:
        normalised: 100 x version / expert (DUME, section 3.1).
        difference: version - expert.
    """

    normalised: float
    normalised_error: float
    difference: float
    difference_error: float

    @classmethod
    def between(cls, version: Score, expert: Score) -> "Difference":
        """The expert's score isn't 0. The ratio's error is that of its linearisation."""
        own, value = expert.result.value, version.result.value
        pairs = list(zip(version.values, expert.values, strict=True))
        ratio = value / own
        error = (standard_error([one - ratio * other for one, other in pairs]) or 0) / own
        difference = standard_error([one - other for one, other in pairs]) or 0
        return cls(100 * ratio, 100 * error, value - own, difference)

    @classmethod
    def average(cls, items: Sequence["Difference"]) -> "Difference | None":
        """Of tasks, whose questions are independent; None without one."""
        if not items:
            return None
        means = {name: sum(getattr(item, name) for item in items) / len(items) for name in ("normalised", "difference")}
        errors = {
            f"{name}_error": math.sqrt(sum(getattr(item, f"{name}_error") ** 2 for item in items)) / len(items)
            for name in means
        }
        return cls(**means, **errors)


@dataclass(frozen=True)
class Row:
    """A task.

    Attributes:
        chance: the score of random choices.
        own: the task's own expert; `chosen`: it was named, and isn't the best one of the row.
        scores: model -> score.
        seed: the seed's name; None without one.
    """

    task: str
    chance: float
    own: str
    chosen: bool
    scores: Mapping[str, Score]
    seed: str | None

    @property
    def seed_at_chance(self) -> bool:
        return self.seed is not None and not self.scores[self.seed].above(self.chance)

    @property
    def says_nothing(self) -> bool:
        """Tell whether the task's own expert is at chance, and the seed too, if there is one."""
        at_chance = not self.scores[self.own].above(self.chance)
        return at_chance and (self.seed is None or self.seed_at_chance)

    def difference(self, version: str) -> Difference | None:
        """None if the task says nothing, or the expert has no right answer."""
        own = self.scores[self.own]
        if self.says_nothing or not own.result.value:
            return None
        return Difference.between(self.scores[version], own)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of a mean; None of a single value."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)


def best_expert(experts: Sequence[str], scores: Mapping[str, Score]) -> str:
    return max(experts, key=lambda name: scores[name].result.value)
