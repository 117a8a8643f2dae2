"""The complete suite, and the measurement of some figures in this process."""

from collections.abc import Sequence
from typing import Any

from bench import (
    contribution,
    fit,
    idle,
    layer,
    load,
    masks,
    merge,
    one_machine,
    parts,
    precision,
    solve,
    statistics_pass,
    streamed,
    versions,
    worker,
)
from bench.measure import say
from bench.registry import BENCHMARKS

MODULES = (
    statistics_pass,
    streamed,
    fit,
    merge,
    one_machine,
    versions,
    solve,
    contribution,
    masks,
    precision,
    load,
    idle,
    layer,
    worker,
    parts,
)
"""Their import fills the registry."""

Result = dict[str, Any]


def measured(names: Sequence[str]) -> list[Result]:
    """The figures in the form of bench.json."""
    results = []
    for item in (BENCHMARKS[name] for name in names):
        say(item.name)
        runs = item.pairs()
        ratio = item.ratio(runs)
        results.append(
            {
                "figure": item.name,
                "ratio": ratio,
                "reach": item.reach,
                "ok": item.ok(ratio),
                "shapes": item.shapes,
                "runs": runs,
            }
        )
    return results
