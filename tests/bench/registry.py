"""The list of benchmarks. To add one, put `@benchmark` on a function in a module that `suite` imports."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

HOME = Path(__file__).parents[2] / "build" / "bench"
"""Folder of inputs, kept between runs."""

Pair = tuple[float, float]
"""The result of one run, ours and theirs: seconds or bytes, so less is better."""

Pairs = Callable[[], list[Pair]]


@dataclass(frozen=True)
class Benchmark:
    """One figure.

    Attributes:
        name: for `--only`.
        figure: our side.
        against: the other side.
        sign: ">=" if the ratio is theirs / ours (how many times better), "<=" if it is ours / theirs.
        reach: the target of the ratio.
        shapes: sizes and dtype of the inputs.
        pairs: measures, and returns every run's pair.
        process: figures with the same word share a process; others each have their own, because earlier work changes
            the speed of allocations.
    """

    name: str
    figure: str
    against: str
    sign: Literal[">=", "<="]
    reach: float
    shapes: str
    pairs: Pairs
    process: str

    def ratio(self, runs: list[Pair]) -> float:
        """The median over the runs' ratios."""
        return median(theirs / ours if self.sign == ">=" else ours / theirs for ours, theirs in runs)

    def ok(self, ratio: float) -> bool:
        return ratio >= self.reach if self.sign == ">=" else ratio <= self.reach


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(
    name: str, figure: str, against: str, sign: Literal[">=", "<="], reach: float, shapes: str, process: str = ""
) -> Callable[[Pairs], Pairs]:
    """Adds the decorated function to the suite."""

    def add(pairs: Pairs) -> Pairs:
        BENCHMARKS[name] = Benchmark(name, figure, against, sign, reach, shapes, pairs, process or name)
        return pairs

    return add
