"""An engine's answers against transformers' in float32."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

EXACT = 1e-4
"""Largest difference of a log-probability in float32, in nats, of an exact version."""
AS_DENSE = 2.0
"""In bfloat16, largest median difference of a version that is as close as its dense expert, times the expert's.

Not the mean: rounding sends a few tokens between two experts to the other one.
"""


@dataclass(frozen=True)
class Answers:
    """A model's answers to the texts, or the engine's error.

    Attributes:
        scores: of each text, the log-probability of its second and further tokens, then of the new ones.
        tokens: of each text, the greedy new tokens.
        error: if it can't run the model.
    """

    scores: Sequence[Sequence[float]] = ()
    tokens: Sequence[Sequence[int]] = ()
    error: str = ""

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        """The answers of one line that an engine's script writes."""
        return cls(row.get("scores", ()), row.get("tokens", ()), row.get("error", ""))


@dataclass(frozen=True)
class Difference:
    """The difference of two answers.

    Attributes:
        typical, most: median and largest one of log-probabilities, in nats; infinite if one is not a number.
        same: whether all greedy tokens are equal.
    """

    typical: float
    most: float
    same: bool

    @property
    def exact(self) -> bool:
        return self.most <= EXACT and self.same


def difference(found: Answers, expected: Answers) -> Difference:
    """The difference of an engine's answers from the expected ones.

    Log-probabilities of new tokens count only as long as the texts agree.
    """
    apart = []
    for ours, theirs, made, right in zip(found.scores, expected.scores, found.tokens, expected.tokens, strict=True):
        read = len(theirs) - len(right)
        agree = next((i for i, pair in enumerate(zip(made, right, strict=True)) if pair[0] != pair[1]), len(right))
        apart += [abs(a - b) for a, b in zip(ours[: read + agree], theirs[: read + agree], strict=True)]
    if not all(item < float("inf") for item in apart):  # NaN is not less
        return Difference(float("inf"), float("inf"), same=False)
    same = [list(token) for token in found.tokens] == [list(token) for token in expected.tokens]
    return Difference(median(apart), max(apart), same)


@dataclass(frozen=True)
class Outcome:
    """The worst difference of one way from the plain model, in nats; `ok` if it is within the bound of that way."""

    way: str
    most: float
    ok: bool
