"""The tables of docs/consumers, between markers."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from engines.compare import Outcome
from engines.results import Result
from engines.speed import EXPERTS, Cost
from moerge.errors import MoergeError

BEGIN, END = "<!-- {name}: written by make test-engines -->", "<!-- end of {name} -->"
_EXACT = "Exact", "Exact with the workaround"


def engine_table(engine: str, number: str, measured: Sequence[Result], when: date) -> str:
    """The number of versions, date and rounding; the exact families; a row for each other family and setting."""
    grouped = groupby(measured, lambda item: f"{item.case.family}, {item.case.setting}")
    groups = {name: list(group) for name, group in grouped}
    said = {name: _verdict(group) for name, group in groups.items()}
    rows = [f"| {name} | {_worst(groups[name])} | {how} |" for name, how in said.items() if how not in _EXACT]
    ratios = sorted(
        item.rounded / item.rounded_dense
        for item in measured
        if item.rounded is not None and item.rounded_dense and item.right
    )
    head = f"{engine} {number} on {when.isoformat()}, {len(measured)} versions."
    if ratios:
        head += f" In bfloat16 the median difference is {ratios[0]:.1f} to {ratios[-1]:.1f} times the dense expert's."
    lines = [head, ""]
    for kind in _EXACT:
        if names := [name for name, how in said.items() if how == kind]:
            worst = _worst(item for name in names for item in groups[name])
            text = f"{kind}, with differences of at most {worst}: {'; '.join(names)}."
            lines += [*wrap(text, 140, break_on_hyphens=False), ""]
    return "\n".join([*lines, "| dense experts | largest difference | |", "|---|---|---|", *rows])


def _worst(group: Iterable[Result]) -> str:
    result = [best.most for item in group if (best := item.remedied or item.exact) is not None]
    return _figure(max(result)) if result else ""


def _verdict(group: Sequence[Result]) -> str:
    if all(item.right for item in group):
        return _EXACT[0] if any(item.exact for item in group) else "in bfloat16 as its dense expert"
    if all(item.right or (item.remedied is not None and item.remedied.exact) for item in group):
        return _EXACT[1]
    return "does not load" if any(item.error for item in group) else "**wrong**"


def _figure(most: float) -> str:
    """A difference in nats, with one digit."""
    return "NaN" if most == float("inf") else f"{most:.1g}"


def costs_table(engine: str, number: str, measured: Mapping[int, Sequence[Cost]], when: date) -> str:
    """A row for each cost, and a column for each number of experts per token."""
    names = [cost.what for cost in next(iter(measured.values()))]
    ratios = {top_k: {cost.what: cost.ratio for cost in costs} for top_k, costs in measured.items()}
    heads = "".join(f" {top_k} of {EXPERTS} experts per token |" for top_k in ratios)
    rows = [f"| {name} |" + "".join(f" {ratio[name]:.2f} |" for ratio in ratios.values()) for name in names]
    head = f"{engine} {number} on {when.isoformat()}, medians of ratios to the dense expert, measured by turns."
    return "\n".join([head, "", f"| |{heads}", "|---|" + "---|" * len(ratios), *rows])


def variants_table(number: str, measured: Mapping[str, Sequence[Outcome]], when: date) -> str:
    """A row for each way, with the worst of all families."""
    ways = dict.fromkeys(outcome.way for outcomes in measured.values() for outcome in outcomes)
    rows = []
    for way in ways:
        result = [outcome for outcomes in measured.values() for outcome in outcomes if outcome.way == way]
        rows.append(f"| {way} | {_figure(max(item.most for item in result))} | {_fine(result)} |")
    head = f"transformers {number} on {when.isoformat()}, a version of each family: {', '.join(measured)}."
    return "\n".join([head, "", "| | largest difference | |", "|---|---|---|", *rows])


def _fine(found: Sequence[Outcome]) -> str:
    if not all(one.ok for one in found):
        return "**wrong**"
    return "as its dense expert" if "int8" in found[0].way else "exact"


def written(page: Path, name: str, text: str) -> None:
    """Replaces the part of a page between the markers of that name.

    Raises:
        MoergeError: the page lacks them.
    """
    begin, end = BEGIN.format(name=name), END.format(name=name)
    before, result, rest = page.read_text(encoding="utf-8").partition(f"{begin}\n")
    _, closed, after = rest.partition(f"{end}\n")
    if not (result and closed):
        raise MoergeError(f"expected the lines {begin!r} and {end!r}", where=str(page), todo="add them")
    page.write_text(f"{before}{begin}\n{text}\n{end}\n{after}", encoding="utf-8")
