"""Two versions' benchmarks, compared where they were measured alike."""

from typing import Any

import pytest

from moerge.versions.benchmarks import benchmark_changes, figure
from moerge.versions.card_scores import benchmarks_text
from support.benchmarks import reported


def test_the_difference_has_the_error_of_independent_samples() -> None:
    [change] = benchmark_changes([reported(value=0.6, error=0.03)], [reported(value=0.5, error=0.04)])
    assert [change.gain, change.error] == pytest.approx([-0.1, 0.05])
    assert change.falls_by_more_than(1.9)
    assert not change.falls_by_more_than(2.1)
    lower: dict[str, Any] = {"higher_is_better": False, "error": 0.0}
    [better] = benchmark_changes([reported(value=9.0, **lower)], [reported(value=8.0, **lower)])
    assert (better.gain, better.rises_by_more_than(3), better.falls_by_more_than(0)) == (1.0, True, False)
    [unknown] = benchmark_changes([reported(value=0.6)], [reported(value=0.1, error=None)])
    assert (unknown.error, unknown.falls_by_more_than(0)) == (None, False)


@pytest.mark.parametrize(
    "change",
    [
        {"metric": "acc_norm"}, {"seed": 1}, {"limit": None}, {"questions": 399}, {"task_version": "2.0"},
        {"data": None}, {"harness": "lm_eval 0.5.0"}, {"owner": "law-owner"}, {"task": "arc_challenge"},
        {"active": False},
    ],
)  # fmt: skip
def test_results_under_other_conditions_are_not_compared(change: dict[str, Any]) -> None:
    assert len(benchmark_changes([reported()], [reported(value=0.1)])) == 1
    assert benchmark_changes([reported()], [reported(**change)]) == []


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.54321, 0.0249, "0.543 ± 0.025"), (0.5, None, "0.5"), (1.0, 0.0, "1 ± 0"), (-0.00001, 0.03, "0.000 ± 0.030"),
        (31.5, 0.9, "31.50 ± 0.90"), (1e15, 1e12, "1000000000000000 ± 1000000000000"),
        (0.1, 1e-300, "0.100000 ± 0.000000"),
    ],
)  # fmt: skip
def test_a_figure_has_the_digits_of_its_error(value: float, error: float | None, shown: str) -> None:
    assert figure(value, error) == shown


def test_a_card_names_tasks_results_and_reporters() -> None:
    text = benchmarks_text([reported(), reported("gsm8k", 0.123456, "law-owner", error=None, task_version=None)])
    assert "| arc_easy | acc | 0.500 ± 0.020 | 400 | 1.0 | lm_eval 0.4.13 | operator |\n" in text
    assert "| gsm8k | acc | 0.1235 | 400 |  | lm_eval 0.4.13 | law-owner |\n" in text
    assert benchmarks_text([]) == ""
    many = benchmarks_text([reported(f"task{number}") for number in range(103)])
    assert many.endswith("|\n\n3 more are in `moerge version table`.\n")
