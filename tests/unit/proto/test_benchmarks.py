"""Results of benchmarks: what a file can have, and that it is read as it was written."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from moerge_proto.benchmarks import BenchmarkResult, read_results, results_json

SENT: dict[str, Any] = {
    "task": "arc_easy",
    "metric": "acc",
    "value": 0.545,
    "standard_error": 0.025,
    "questions": 400,
    "task_version": "1.0",
    "limit": 400,
    "seed": 0,
    "data": "a" * 64,
    "harness": "lm_eval 0.4.13",
}


def test_a_file_of_results_is_read_as_it_was_written() -> None:
    sent = BenchmarkResult.model_validate(SENT)
    whole = sent.model_copy(update={"metric": "exact_match,strict-match", "limit": None, "data": None})
    other = BenchmarkResult(
        task="lambada", metric="perplexity", value=31.5, higher_is_better=False, questions=10, seed=1, harness="own 1"
    )
    assert read_results(results_json([sent, whole, other]).decode()) == [sent, whole, other]


def test_a_task_and_metric_have_one_result() -> None:
    sent = BenchmarkResult.model_validate(SENT)
    with pytest.raises(ValidationError, match="2 results of arc_easy, acc; expected one"):
        results_json([sent, sent.model_copy(update={"value": 0.6})])


def test_a_file_has_between_one_and_a_thousand_results() -> None:
    sent = BenchmarkResult.model_validate(SENT)
    with pytest.raises(ValidationError, match="at least 1 item"):
        results_json([])
    with pytest.raises(ValidationError, match="at most 1000 items"):
        results_json([sent.model_copy(update={"task": f"task{number}"}) for number in range(1001)])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"task": "<b>arc</b>"}, "task"),
        ({"task": ""}, "task"),
        ({"task": "arc\n"}, "task"),
        ({"task": "../arc"}, "task"),
        ({"task": "a" * 101}, "task"),
        ({"metric": "acc|none"}, "metric"),
        ({"harness": "lm_eval\x1b[2J"}, "harness"),
        ({"task_version": "=cmd()"}, "task_version"),
        ({"value": math.nan}, "value"),
        ({"value": math.inf}, "value"),
        ({"value": 1e300}, "value"),
        ({"standard_error": -0.1}, "standard_error"),
        ({"standard_error": math.nan}, "standard_error"),
        ({"questions": 0}, "questions"),
        ({"questions": True}, "questions"),
        ({"limit": 0}, "limit"),
        ({"seed": -1}, "seed"),
        ({"data": "A" * 64}, "data"),
        ({"samples": ["the patient"]}, "samples"),
    ],
)
def test_a_result_has_no_room_for_text_or_impossible_figures(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as raised:
        BenchmarkResult.model_validate(SENT | change)
    assert [error["loc"][0] for error in raised.value.errors()] == [told]
