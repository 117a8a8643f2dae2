"""The ridge system of a layer: gains, and room for the tokens."""

from pathlib import Path

import numpy as np
import pytest
import torch

from moerge.errors import ContributionError
from moerge.routers.system import ridge_system
from moerge.statistics.accumulate import ShardSums
from moerge_proto.statistics_file import MAX_TOKENS, StatisticsFile
from support.statistics import honest_sums, manifest_of, written

HIDDEN = 12


def test_gains_are_multiplied_back_in(tmp_path: Path) -> None:
    """The system is that of x = w u: W^T W over u, scaled on both sides."""
    sums = honest_sums(HIDDEN, 40, 4, HIDDEN, 0)
    with StatisticsFile(written(tmp_path / "file", manifest_of(sums, 4), sums)) as file:
        plain = ridge_system([file], ["law"], 0, torch.ones(HIDDEN))
        gain = torch.linspace(-1, 2, HIDDEN)
        scaled = ridge_system([file], ["law"], 0, gain)
    weight = torch.diag(gain.double())
    torch.testing.assert_close(scaled[0], weight @ plain[0] @ weight)
    torch.testing.assert_close(scaled[1], weight @ plain[1])


def test_token_count_beyond_the_integer_limit_is_refused(tmp_path: Path) -> None:
    sums = honest_sums(HIDDEN, 40, 4, HIDDEN, 0)
    large, small = (manifest_of(sums, 4).model_copy(update={"tokens": tokens}) for tokens in (MAX_TOKENS, 40))
    with (
        StatisticsFile(written(tmp_path / "large", large.model_copy(update={"owner": "eve"}), sums)) as one,
        StatisticsFile(written(tmp_path / "small", small, sums)) as other,
        pytest.raises(ContributionError) as caught,
    ):
        ridge_system([other, one], ["law"], 0, torch.ones(HIDDEN))
    assert caught.value.what.endswith(f"; {MAX_TOKENS} are from law (owner eve, contribution large)")


def test_integer_overflow_error_names_the_largest_contribution(tmp_path: Path) -> None:
    sums = honest_sums(HIDDEN, 40, 4, HIDDEN, 0)
    huge = ShardSums({name: np.full_like(array, 2**63 - 1) for name, array in sums.arrays.items()}, 40, 4)
    with (
        StatisticsFile(written(tmp_path / "honest", manifest_of(sums, 4), sums)) as one,
        StatisticsFile(written(tmp_path / "huge", manifest_of(huge, 4, domain="art"), huge)) as other,
        pytest.raises(ContributionError, match=r"the largest is from art \(owner owner, contribution huge\)"),
    ):
        ridge_system([one, other], ["law", "art"], 0, torch.ones(HIDDEN))
