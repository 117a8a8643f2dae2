"""Evaluations have only possible figures, and the table is the paper's formula, by figures computed by hand."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from moerge_proto.digests import canonical_json, sha256_hex
from moerge_proto.evaluations import RESULTS, NewEvaluation, VersionTable
from support.evaluations import evaluation, reported, result, sums


def test_score_is_100_times_dense_over_version_perplexity() -> None:
    """e^2 over e^2.5 is 60.653 %; 4 over 2 is 200 %; their mean is 130.327 %."""
    dense, version = ({"nll": 4 * math.log(perplexity), "tokens": 4} for perplexity in (4, 2))
    art = sums(domain="art", dense=dense, version=version, oracle=dense, documents=1, routed=[[0, 4], [1, 3]])
    table = VersionTable.of(3, ["law", "art"], [reported(art), reported(result()), reported(sums(), "law-owner")])
    law, other = table.scores
    assert (law.domain, other.domain, table.missing) == ("law", "art", [])
    assert [law.dense, law.version] == pytest.approx([7.389056, 12.182494])
    assert [other.dense, other.version] == pytest.approx([4, 2])
    assert [law.normalised, other.normalised] == pytest.approx([60.653066, 200])
    assert [law.normalised_oracle, other.normalised_oracle] == pytest.approx([81.873075, 100])
    assert table.average == pytest.approx(130.326533)
    assert law.shares == [[0.9, 0.1], [0.5, 0.5]]
    assert (law.documents, law.tokens, law.owner) == (2, 10, "law-owner")


def test_an_average_leaves_out_the_seed_as_an_expert() -> None:
    law = reported(sums())
    table = VersionTable.of(3, ["general", "law"], [law, reported(sums(domain="general"))], ["general"])
    assert (table.averaged, [score.domain for score in table.scores]) == (["law"], ["general", "law"])
    assert table.average == next(score.normalised for score in table.scores if score.domain == "law")
    unscored = VersionTable.of(3, ["general", "law"], [law], ["general"])
    assert (unscored.average, unscored.missing) == (table.average, [])
    assert VersionTable.of(3, ["general"], [], ["general"]).average is None


def test_without_all_domains_there_is_no_average() -> None:
    table = VersionTable.of(3, ["law", "art"], [reported(sums())])
    assert (table.average, table.missing, len(table.scores)) == (None, ["art"], 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dense": {"nll": 1.0, "tokens": 9}}, "dense covers 9 tokens, version 10"),
        ({"documents": 11}, "11 documents can't have 10"),
        ({"stride": 8}, "stride is 8"),
        ({"routed": [[9, 1], [5, 4]]}, "routed counts 9 tokens in layer 1"),
        ({"routed": [[11, -1], [5, 5]]}, "greater than or equal to 0"),
        ({"routed": []}, "at least 1 item"),
        ({"version": {"nll": -1.0, "tokens": 10}}, "greater than or equal to 0"),
        ({"version": {"nll": math.inf, "tokens": 10}}, "finite"),
        ({"version": {"nll": math.nan, "tokens": 10}}, "greater than or equal to 0|finite"),
        ({"version": {"nll": 4000.0, "tokens": 10}}, "nats per token"),
        ({"version": {"nll": 0.0, "tokens": 0}}, "greater than or equal to 1"),
        ({"text": "the patient"}, "Extra inputs"),
    ],
)
def test_sums_that_no_honest_pass_gives_are_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        sums(**change)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("task", ["<b>arc</b>", "", "arc\n", "../arc", "a" * 101]),
        ("metric", ["acc|none", "acc|\n# Heading"]),
        ("harness", ["lm_eval\x1b[2J"]),
        ("task_version", ["=cmd()"]),
        ("value", [math.nan, math.inf, 1e300]),
        ("standard_error", [-0.1, math.nan]),
        ("questions", [0, True, 2**40]),
        ("limit", [0]),
        ("seed", [-1]),
        ("data", ["A" * 64]),
        ("samples", [["the patient"]]),
    ],
)
def test_a_result_has_no_room_for_text_or_impossible_figures(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValidationError) as raised:
            result(**{field: value}) if field != "task" else result(value)
        assert [error["loc"] for error in raised.value.errors()] == [(field,)]


def test_a_file_of_results_is_read_as_it_was_written() -> None:
    other = result("lambada", 31.5, None, metric="perplexity,none", higher_is_better=False, limit=None, data=None)
    assert RESULTS.validate_json(RESULTS.dump_json([result(), other])) == [result(), other]


def test_a_report_has_each_name_once_and_at_most_a_thousand() -> None:
    for scores, told in (
        ([result(), result(value=0.6)], r"2 scores of arc_easy \(acc\); expected one"),
        ([sums(), sums(nll=30.0)], "2 scores of law; expected one"),
        ([result(f"task{number}") for number in range(1001)], "at most 1000 items"),
    ):
        with pytest.raises(ValidationError, match=told):
            evaluation(3, *scores)
    with pytest.raises(ValidationError, match="at least 1 item"):
        NewEvaluation(number=3, scores=[])


def test_evaluation_digest_is_that_of_its_canonical_json() -> None:
    sent = evaluation(3, sums(), result())
    written = canonical_json(sent.model_dump(mode="json"))
    assert sha256_hex(written) == sent.digest
    assert NewEvaluation.model_validate_json(written) == sent
