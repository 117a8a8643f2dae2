"""A table's figures: scores over seeds, with their standard errors from resampled documents."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from moerge.scoring.perplexity import Score, normalised, total
from moerge_lab.table.bootstrap import Floats, resampled
from moerge_proto.normalised import average


@dataclass(frozen=True)
class Figure:
    """A figure over seeds.

    Attributes:
        values: of each seed.
        resamples: [RESAMPLES], the mean over seeds for each resample of the documents; None if unknown.
    """

    values: Sequence[float]
    resamples: Floats | None = field(default=None, compare=False)

    @classmethod
    def of(cls, dense: Sequence[Score], models: Sequence[Sequence[Score]], domain: int) -> "Figure":
        """The normalised score of each seed's model; all scores are document by document.

        Args:
            dense: the reference.
            models: by seed.
            domain: the number of the documents' domain.
        """
        values = [normalised(total(dense), total(model)) for model in models]
        return cls(values, _mean([resampled(dense, model, domain) for model in models]))

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
        if self.resamples is None:
            return None
        return math.hypot(float(self.resamples.std(ddof=1)), self.deviation / len(self.values) ** 0.5)

    @property
    def spread(self) -> str:
        """The error as text; empty if unknown."""
        return f" ± {self.error:.1f}" if self.error else ""

    def __str__(self) -> str:
        return f"{self.mean:.1f}{self.spread}"

    def __sub__(self, other: "Figure") -> "Figure":
        """The difference for each seed; a single value counts for every seed."""
        seeds = range(max(len(self.values), len(other.values)))
        one, two = ([figure.values[seed % len(figure.values)] for seed in seeds] for figure in (self, other))
        values = [a - b for a, b in zip(one, two, strict=True)]
        if self.resamples is None or other.resamples is None:
            return Figure(values)
        return Figure(values, self.resamples - other.resamples)


def mean(figures: Iterable[Figure]) -> Figure:
    """The average of the domains' figures, for each seed."""
    every = list(figures)
    values = [average(item) for item in zip(*(figure.values for figure in every), strict=True)]
    return Figure(values, _mean([figure.resamples for figure in every]))


def _mean(resamples: Sequence[Floats | None]) -> Floats | None:
    known = [resample for resample in resamples if resample is not None]
    return sum(known[1:], known[0]) / len(known) if len(known) == len(resamples) else None
