"""The normalised perplexity and its average."""

import math

import pytest

from moerge_proto.normalised import average, normalised


def test_half_the_expert_s_perplexity_scores_200() -> None:
    assert normalised(dense=10 * math.log(8), model=10 * math.log(4), tokens=10) == pytest.approx(200)


def test_there_is_no_average_while_a_domain_has_no_score() -> None:
    assert average([90.0, 100.0, 80.0]) == 90
    assert average([90.0, None, 80.0]) is None
