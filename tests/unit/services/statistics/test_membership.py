"""The expected success of a membership test."""

import pytest

from moerge.statistics.membership import FEW_DOCUMENTS, MEASURED, expected_auc


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        (1, "AUC over 0.94"),
        (100, "AUC about 0.94"),
        (300, "AUC about 0.77"),
        (600, "AUC about 0.68"),
        (3000, "AUC about 0.56"),
        (3001, "AUC under 0.56"),
    ],
)
def test_expected_curve_goes_through_the_measured_points(documents: int, words: str) -> None:
    assert expected_auc(documents) == words


def test_default_minimum_is_a_measured_number() -> None:
    assert FEW_DOCUMENTS in MEASURED
