"""Two versions' scores, compared where they were measured alike."""

from typing import Any

import pytest

from moerge.versions.card_scores import tasks_text
from moerge.versions.evaluations import Change, changes_between, figure
from support.evaluations import reported, result, sums


def change(before: tuple[float, float | None], after: tuple[float, float | None], **how: Any) -> Change:
    [made] = changes_between(*([reported(result("arc", *score, **how))] for score in (before, after)))
    return made


def test_the_difference_has_the_error_of_independent_samples() -> None:
    worse = change((0.6, 0.03), (0.5, 0.04))
    assert [worse.gain, worse.error, worse.allowed(1, 3)] == pytest.approx([-0.1, 0.05, 0.15])
    better = change((9.0, 0.0), (8.0, 0.0), higher_is_better=False)
    assert (better.difference, better.gain, better.allowed(1, 3)) == (-1, 1, 0)
    unknown = change((0.6, 0.02), (0.1, None))
    assert (unknown.error, unknown.allowed(1, 3)) == (None, None)
    [domain] = changes_between([reported(sums(nll=20.0))], [reported(sums())])
    assert [domain.gain, domain.allowed(1, 3)] == pytest.approx([-39.346934, 1])


@pytest.mark.parametrize(
    "other",
    [
        {"metric": "acc_norm"}, {"seed": 1}, {"limit": None}, {"questions": 399}, {"task_version": "2.0"},
        {"data": None}, {"harness": "lm_eval 0.5.0"}, {"task": "arc_challenge"},
    ],
)  # fmt: skip
def test_results_under_other_conditions_are_not_compared(other: dict[str, Any]) -> None:
    assert len(changes_between([reported(result())], [reported(result(value=0.1))])) == 1
    assert changes_between([reported(result())], [reported(result(**other))]) == []
    assert changes_between([reported(result())], [reported(result(), "law-owner")]) == []


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
    gsm8k = result("gsm8k", 0.123456, None, task_version=None)
    text = tasks_text([reported(sums()), reported(result()), reported(gsm8k, "law-owner")])
    assert "| arc_easy | acc | 0.500 ± 0.020 | 400 | 1.0 | lm_eval 0.4.13 | operator |\n" in text
    assert text.endswith("| gsm8k | acc | 0.1235 | 400 |  | lm_eval 0.4.13 | law-owner |\n")
    assert tasks_text([reported(sums())]) == ""
    many = tasks_text([reported(result(f"task{number}")) for number in range(103)])
    assert many.endswith("|\n\n3 more are in `moerge version table`.\n")
