"""Evaluations add up, and the table is the paper's formula, by figures computed by hand."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from moerge_proto.digests import canonical_json, sha256_hex
from moerge_proto.evaluations import Evaluation, NewEvaluation, Scored, VersionTable

SENT: dict[str, Any] = {
    "number": 3,
    "domain": "law",
    "expert": "1" * 64,
    "documents": 2,
    "context": 8,
    "stride": 4,
    "dense": {"nll": 20.0, "tokens": 10},
    "version": {"nll": 25.0, "tokens": 10},
    "oracle": {"nll": 22.0, "tokens": 10},
    "routed": [[9, 1], [5, 5]],
}


def evaluation(number: int, *, active: bool = True, **sent: Any) -> Evaluation:
    sums = NewEvaluation.model_validate(SENT | sent)
    return Evaluation(
        number=number,
        digest=sums.digest,
        version=3,
        owner=f"{sums.domain}-owner",
        active=active,
        created=datetime(2026, 1, number, tzinfo=UTC),
        sums=sums,
    )


def test_score_is_100_times_dense_over_version_perplexity() -> None:
    """e^2 over e^2.5 is 60.653 %; 4 over 2 is 200 %; their mean is 130.327 %."""
    dense, version = ({"nll": 4 * math.log(perplexity), "tokens": 4} for perplexity in (4, 2))
    art = evaluation(2, domain="art", dense=dense, version=version, oracle=dense, documents=1, routed=[[0, 4], [1, 3]])
    table = VersionTable.of(3, ["law", "art"], [art, evaluation(1), evaluation(4, active=False, documents=1)])
    law, other = table.scores
    assert (law.domain, other.domain, table.missing) == ("law", "art", [])
    assert [law.dense, law.version] == pytest.approx([7.389056, 12.182494])
    assert [other.dense, other.version] == pytest.approx([4, 2])
    assert law.normalised == pytest.approx(60.653066)
    assert other.normalised == pytest.approx(200)
    assert law.normalised_oracle == pytest.approx(81.873075)
    assert other.normalised_oracle == pytest.approx(100)
    assert table.average == pytest.approx(130.326533)
    assert law.shares == [[0.9, 0.1], [0.5, 0.5]]
    assert (law.documents, law.tokens, law.owner) == (2, 10, "law-owner")


def test_an_average_leaves_out_the_seed_as_an_expert() -> None:
    law = evaluation(1)
    table = VersionTable.of(3, ["general", "law"], [law, evaluation(2, domain="general")], ["general"])
    assert (table.averaged, [score.domain for score in table.scores]) == (["law"], ["general", "law"])
    assert table.average == next(score.normalised for score in table.scores if score.domain == "law")
    unscored = VersionTable.of(3, ["general", "law"], [law], ["general"])
    assert (unscored.average, unscored.missing) == (table.average, [])
    assert VersionTable.of(3, ["general"], [], ["general"]).average is None


def test_without_all_domains_there_is_no_average() -> None:
    table = VersionTable.of(3, ["law", "art"], [evaluation(1)])
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
def test_sums_that_no_honest_pass_gives_are_no_evaluation(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        NewEvaluation.model_validate(SENT | change)


def test_evaluation_digest_is_that_of_its_canonical_json() -> None:
    sent = NewEvaluation.model_validate(SENT)
    written = canonical_json(sent.model_dump(mode="json"))
    assert sha256_hex(written) == sent.digest == NewEvaluation.model_validate_json(written).digest
    assert NewEvaluation.model_validate_json(sent.model_dump_json()).digest == sent.digest
    assert sent.dense == Scored(nll=20, tokens=10)
