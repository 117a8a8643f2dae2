"""`python -m bench`: measures every figure, or one, prints them and stores them in build/bench.json."""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bench.registry import BENCHMARKS, HOME
from bench.suite import Result, measured

RESULTS = HOME.with_suffix(".json")


def apart(names: Sequence[str]) -> Iterator[Result]:
    """The figures, each measured in a new process."""
    for _, group in groupby(sorted(names, key=process), key=process):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            yield from fresh.submit(measured, list(group)).result()


def process(name: str) -> str:
    return BENCHMARKS[name].process


def kept(path: Path) -> dict[str, Result]:
    """Figures both in the file and in the suite, by name."""
    answer = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return {result["figure"]: result for result in answer if result["figure"] in BENCHMARKS}


def keep(path: Path, result: Result) -> None:
    """Stores one figure in the file; the others stay."""
    results = kept(path) | {result["figure"]: result}
    ordered = [results[name] for name in BENCHMARKS if name in results]
    path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def table(results: list[Result]) -> Table:
    shown = Table(title=f"Medians of alternating runs; {torch.get_num_threads()} threads")
    for column in ("figure", "against", "ratio", "reach", "ok", "shapes/dtype"):
        shown.add_column(column, justify="right" if column in ("ratio", "reach") else "left", overflow="fold")
    for result in results:
        item = BENCHMARKS[result["figure"]]
        shown.add_row(
            f"{item.name}: {item.figure}",
            item.against,
            f"{result['ratio']:.3g}",
            f"{item.sign} {item.reach:g}",
            "[green]yes[/]" if result["ok"] else "[red]no[/]",
            item.shapes,
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    only = os.environ.get("ONLY") or None
    parser.add_argument("--only", choices=list(BENCHMARKS), default=only, help="measure this figure (or set ONLY)")
    only = parser.parse_args().only
    if only is not None and only not in BENCHMARKS:
        parser.error(f"no figure {only!r}; use one of: {', '.join(BENCHMARKS)}")
    HOME.mkdir(parents=True, exist_ok=True)
    results = []
    for result in apart([only] if only else list(BENCHMARKS)):
        results.append(result)
        keep(RESULTS, result)
    Console(width=None if Console().is_terminal else 200).print(table(results))


if __name__ == "__main__":
    main()
