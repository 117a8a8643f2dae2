"""A table's figures: scores over seeds, with their standard errors from resampled documents."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from moerge.scoring.perplexity import Score, normalised, total
from moerge_proto import normalised as formulas

RESAMPLES = 1_000
Floats = NDArray[np.float64]
UNKNOWN: Floats = np.full(RESAMPLES, np.nan)


@cache
def draws(domain: int, documents: int) -> Floats:
    """[RESAMPLES, documents]: the count of each document in a resample with replacement, equal for every row."""
    generator = np.random.default_rng([0, domain])
    return generator.multinomial(documents, np.full(documents, 1 / documents), RESAMPLES).astype(np.float64)


def resampled(dense: Sequence[Score], model: Sequence[Score], domain: int) -> Floats:
    """[RESAMPLES]: the normalised score of each resample of a domain's documents; unknown for a single document."""
    if len(dense) < 2:
        return UNKNOWN
    rows = [(reference.nll, score.nll, score.tokens) for reference, score in zip(dense, model, strict=True)]
    sums = draws(domain, len(dense)) @ np.array(rows, dtype=np.float64)  # [RESAMPLES, 3]
    return np.array([formulas.normalised(*item) for item in sums.tolist()])


@dataclass(frozen=True)
class Figure:
    """A figure of each seed, and [RESAMPLES], its mean over seeds for each resample of the documents."""

    values: Sequence[float]
    resamples: Floats = field(default_factory=lambda: UNKNOWN, compare=False)

    @classmethod
    def of(cls, dense: Sequence[Score], models: Sequence[Sequence[Score]], domain: int) -> "Figure":
        """The normalised score of each seed's model, from scores of the documents of the domain with this number."""
        values = [normalised(total(dense), total(model)) for model in models]
        return cls(values, np.mean([resampled(dense, model, domain) for model in models], axis=0))

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """The sample's standard deviation over seeds; 0 for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def error(self) -> float | None:
        """The standard error of the mean, over documents and seeds; None if unknown."""
        error = math.hypot(float(self.resamples.std(ddof=1)), self.deviation / len(self.values) ** 0.5)
        return None if math.isnan(error) else error

    @property
    def spread(self) -> str:
        return f" ± {self.error:.1f}" if self.error else ""

    def __str__(self) -> str:
        return f"{self.mean:.1f}{self.spread}"

    def __sub__(self, other: "Figure") -> "Figure":
        """The difference for each seed; a single value counts for every seed."""
        seeds = range(max(len(self.values), len(other.values)))
        one, two = ([figure.values[seed % len(figure.values)] for seed in seeds] for figure in (self, other))
        return Figure([a - b for a, b in zip(one, two, strict=True)], self.resamples - other.resamples)


def mean(figures: Iterable[Figure]) -> Figure:
    """The average of the domains' figures, for each seed."""
    every = list(figures)
    values = [formulas.average(item) for item in zip(*(figure.values for figure in every), strict=True)]
    return Figure(values, np.mean([figure.resamples for figure in every], axis=0))
