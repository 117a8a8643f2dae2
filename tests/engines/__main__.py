"""`python -m engines`: publishes versions, runs them in every engine and compares; fails on an unknown difference."""

import argparse
import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import transformers
from rich.console import Console

from engines.benchmarked import benchmarked
from engines.cases import Case, cases
from engines.compare import Outcome
from engines.engine import HOME, ROOT, MissingEngineError, Model, page_of
from engines.publish import experts, version
from engines.registry import ENGINES
from engines.results import Expected, results
from engines.served import asked
from engines.speed import costs as cost_ratios
from engines.table import costs_table, engine_table, variants_table, written
from engines.variants import outcomes

TRANSFORMERS = "transformers"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engines", description=__doc__)
    names = (*ENGINES, TRANSFORMERS)
    parser.add_argument("--engine", action="append", choices=names, help="only this engine; repeat")
    parser.add_argument("--only", default="", help="only cases with this text in their name")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/consumers")
    given = parser.parse_args()
    told, faults = Console(stderr=True), list[str]()

    def say(line: str) -> None:
        told.print(line, highlight=False, markup=False)

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    every = [case for case in cases() if given.only in case.name]
    wanted = given.engine or names
    try:
        installed = {name: ENGINES[name].version() for name in wanted if name != TRANSFORMERS}
    except MissingEngineError as error:
        say(str(error))
        return 2
    for number, case in enumerate(every, 1):
        version(case, HOME)
        say(f"published {number} of {len(every)}: {case.name}")
    today, expected = datetime.now(UTC).date(), Expected()
    for name, number in installed.items():
        measured = results(ENGINES[name], every, HOME, expected, say)
        faults += [f"{name}: {item.fault}" for item in measured if item.fault]
        _show(name, engine_table(name, number, measured, today), write=given.write)
        if script := ENGINES[name].speed:
            first = version(every[0], HOME)
            costs = {top_k: cost_ratios(ENGINES[name], script, first, top_k) for top_k in (1, 2)}
            _show(name, costs_table(name, number, costs, today), ", costs", write=given.write)
        path = ENGINES[name].prepared(Model(version(every[0], HOME), "float32"))
        say(asked(ENGINES[name], path, HOME / "served.txt"))
        if ENGINES[name].benchmarks:
            say(benchmarked(ENGINES[name], HOME / "benchmarked"))
    if TRANSFORMERS in wanted:
        result = _variants(every)
        faults += [
            f"{TRANSFORMERS}: {family}: {way.way}: off by {way.most:.1e}"
            for family, ways in result.items()
            for way in ways
            if not way.ok
        ]
        own = importlib.metadata.version(TRANSFORMERS)
        _show(TRANSFORMERS, variants_table(own, result, today), write=given.write)
    for fault in faults:
        say(fault)
    return 1 if faults else 0


def _variants(every: Sequence[Case]) -> dict[str, list[Outcome]]:
    """The ways of transformers, with the first version of each family."""
    int8 = importlib.util.find_spec("torchao") is not None
    first = {case.family: case for case in reversed(every)}
    return {
        family: list(outcomes(version(case, HOME), experts(case, HOME)[0], int8=int8))
        for family, case in reversed(first.items())
    }


def _show(engine: str, text: str, about: str = "", *, write: bool) -> None:
    print(text, end="\n\n")
    if write:
        written(ROOT / page_of(engine), engine + about, text)


if __name__ == "__main__":
    sys.exit(main())
