"""The benchmarks in `moerge version table` and `moerge version compare`."""

from collections.abc import Sequence

from moerge.cli.common import minute, show
from moerge.versions.benchmarks import BenchmarkChange, benchmark_changes, benchmark_name, figure
from moerge_proto.benchmarks import Benchmark


def show_benchmarks(rows: Sequence[Benchmark], champion: int | None, champions: Sequence[Benchmark]) -> None:
    """Prints a version's results, beside those of the `champion`, None without another one."""
    if not rows:
        return
    changes = {change.after.number: change for change in benchmark_changes(champions, rows)}
    lines = [
        [
            row.result.task,
            row.result.metric,
            figure(row.result.value, row.result.standard_error),
            *(_compared(changes.get(row.number)) if champion is not None else ()),
            f"{row.result.questions:,}",
            row.result.harness,
            f"{row.reporter}, {minute(row.created)}",
        ]
        for row in rows
    ]
    beside = [] if champion is None else [f"champion's ({champion})", "difference"]
    columns = ["task", "metric", "this version", *beside, "questions", "harness", "reported"]
    show("Benchmarks, with standard errors", columns, lines)


def show_benchmark_changes(before: int, after: int, changes: Sequence[BenchmarkChange]) -> None:
    """Prints the results that two versions have under the same conditions."""
    if changes:
        lines = [[benchmark_name(change.after), *_pair(change), change.after.reporter] for change in changes]
        columns = ["benchmark", f"version {before}", f"version {after}", "difference", "reported by"]
        show("Benchmarks measured alike, with standard errors", columns, lines)


def _compared(change: BenchmarkChange | None) -> list[str]:
    return ["", ""] if change is None else [_pair(change)[0], _pair(change)[2]]


def _pair(change: BenchmarkChange) -> list[str]:
    """The two results, and their difference."""
    before, after = change.before.result, change.after.result
    figures = [figure(result.value, result.standard_error) for result in (before, after)]
    return [*figures, figure(after.value - before.value, change.error)]
