"""The plan, comparison and verdicts of `make test-engines`, without an engine."""

from dataclasses import replace
from datetime import date
from itertools import combinations, product
from pathlib import Path

import pytest

from engines.cases import SETTINGS, cases, pairwise, possible
from engines.compare import Answers, Difference, difference
from engines.engine import Engine, MissingEngineError
from engines.registry import ENGINES
from engines.results import Result
from engines.table import engine_table, written
from moerge.errors import MoergeError
from moerge.models.families.registry import FAMILIES
from moerge_proto.versions import EngineLimit

LIMIT = EngineLimit(engine="vLLM", happens="ignores all biases", remedy="use another engine")
RIGHT, WRONG = Difference(1e-6, 1e-5, same=True), Difference(1e-3, 1e-2, same=True)


def test_the_plan_has_every_family_and_setting_and_all_pairs() -> None:
    every = cases()
    assert {case.family for case in every} == set(FAMILIES)
    assert {(case.family, case.setting) for case in every} == {(f, s) for f in SETTINGS for s in SETTINGS[f]}
    factors = {name: {getattr(case, name) for case in every} for name in ("body", "experts", "top_k", "head", "dtype")}
    for one, other in combinations(factors, 2):
        for a, b in product(factors[one], factors[other]):
            if possible({one: a, other: b}):
                assert any((getattr(case, one), getattr(case, other)) == (a, b) for case in every), (a, b)
    assert len({case.name for case in every}) == len(every)


def test_pairwise_takes_fewer_rows_than_all_combinations() -> None:
    rows = list(pairwise({"a": (1, 2, 3), "b": (1, 2, 3), "c": (1, 2, 3), "d": (1, 2, 3)}))
    assert len(rows) <= 15  # of 81
    for one, other in combinations("abcd", 2):
        assert {(row[one], row[other]) for row in rows} == set(product((1, 2, 3), repeat=2))


def test_new_tokens_count_until_the_texts_differ() -> None:
    expected = Answers([[-1.0, -2.0, -3.0, -4.0]], [[7, 8]])
    same = difference(Answers([[-1.0, -2.0, -3.0, -4.5]], [[7, 8]]), expected)
    assert (same.typical, same.most, same.same) == (0.0, 0.5, True)
    other = difference(Answers([[-1.0, -2.0, -3.0, -9.0]], [[7, 9]]), expected)
    assert (other.most, other.same, other.exact) == (0.0, False, False)


def test_what_is_not_a_number_is_no_answer() -> None:
    assert difference(Answers([[float("nan"), -2.0]], [[7]]), Answers([[-1.0, -2.0]], [[7]])).most == float("inf")


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (Result(cases()[0], [], exact=RIGHT), ""),
        (Result(cases()[0], [LIMIT], exact=WRONG), ""),
        (Result(cases()[0], [LIMIT], error="no such class"), ""),
        (Result(cases()[0], [], exact=WRONG), "no warning"),
        (Result(cases()[0], [], error="no such class"), "no such class, and no warning"),
        (Result(cases()[0], [LIMIT], exact=RIGHT), "but warned"),
        (Result(cases()[0], [LIMIT], exact=WRONG, remedied=WRONG), "the remedy"),
        (Result(cases()[0], [], exact=RIGHT, rounded=0.01, rounded_dense=0.006), ""),
        (Result(cases()[0], [], exact=RIGHT, rounded=0.02, rounded_dense=0.006), "no warning"),
        (Result(cases()[0], [], rounded=0.01, rounded_dense=0.006), ""),
        (Result(cases()[0], [], rounded=0.02, rounded_dense=0.006), "no warning"),
    ],
)
def test_engine_warns_if_and_only_if_its_answer_is_wrong(result: Result, fault: str) -> None:
    assert fault in result.fault
    assert bool(fault) == bool(result.fault)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_missing_engine_names_its_command(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.engine.HOME", tmp_path)
    with pytest.raises(MissingEngineError, match=rf"{engine.name} is not installed .*make test-engines"):
        engine.version()


def test_a_table_has_rows_of_what_is_not_exact() -> None:
    measured = [Result(case, [LIMIT], exact=WRONG) for case in cases()[:3]]
    measured[:2] = replace(measured[0], exact=RIGHT), replace(measured[1], remedied=RIGHT)
    lines = engine_table("vLLM", "1.0", measured, date(2026, 1, 2)).splitlines()
    assert lines[2].startswith("Exact, with differences of at most 1e-05: ")
    assert lines[4].startswith("Exact with the workaround, with differences of at most 1e-05: ")
    assert [line.endswith(" | 0.01 | **wrong** |") for line in lines[8:]] == [True]


def test_a_table_is_written_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x: written by make test-engines -->\nold\n<!-- end of x -->\nafter\n")
    written(page, "x", "new")
    assert page.read_text() == "before\n<!-- x: written by make test-engines -->\nnew\n<!-- end of x -->\nafter\n"
    with pytest.raises(MoergeError, match="end of y"):
        written(page, "y", "new")
