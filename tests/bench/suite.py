"""The complete suite, and the measurement of some figures in this process."""

from collections.abc import Sequence
from typing import Any

from bench import (
    contribution,
    layer,
    load,
    merge,
    one_machine,
    precision,
    solve,
    statistics_pass,
    streamed,
    versions,
    worker,
)
from bench.measure import say
from bench.registry import BENCHMARKS

MODULES = (statistics_pass, streamed, merge, one_machine, versions, solve, contribution, precision, load, layer, worker)
"""Their import fills the registry."""

Result = dict[str, Any]


def measured(names: Sequence[str]) -> list[Result]:
    """The figures in the form of bench.json."""
    results = []
    for each in (BENCHMARKS[name] for name in names):
        say(each.name)
        runs = each.pairs()
        ratio = each.ratio(runs)
        results.append(
            {
                "figure": each.name,
                "ratio": ratio,
                "reach": each.reach,
                "ok": each.ok(ratio),
                "shapes": each.shapes,
                "runs": runs,
            }
        )
    return results
