"""Honest contributions pass; what no features can give is refused by layer and tensor."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moerge.errors import ContributionError
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.validate import validate
from moerge_proto.statistics_file import StatisticsFile
from support.peaks import require_growth
from support.statistics import honest_sums, manifest_of, written

Change = Callable[[ShardSums], None]


def check(path: Path, nonzero: int) -> list[str]:
    with StatisticsFile(path) as file:
        return validate(file, file.manifest.exponents, [nonzero] * file.manifest.layers)


@settings(max_examples=60, deadline=None)
@given(
    hidden=st.integers(1, 40),
    tokens=st.integers(1, 300),
    shards=st.integers(1, 5),
    rank=st.integers(1, 40),
    seed=st.integers(0, 2**30),
)
def test_every_honest_contribution_passes(
    tmp_path_factory: pytest.TempPathFactory, hidden: int, tokens: int, shards: int, rank: int, seed: int
) -> None:
    """Also with fewer tokens than dimensions, repeated tokens, and features in few directions."""
    sums = honest_sums(hidden, tokens, shards, rank, seed)
    assume(sums.arrays["layers.0.cross"].any())  # of a single direction they may cancel out
    path = written(tmp_path_factory.mktemp("honest") / "file", manifest_of(sums, shards), sums)
    assert check(path, hidden) == []


def test_one_token_a_hundred_thousand_times_passes(tmp_path: Path) -> None:
    sums = honest_sums(16, 100_000, 1, 1, 0)
    assert check(written(tmp_path / "file", manifest_of(sums, 1), sums), 16) == []


def tripled(sums: ShardSums) -> None:
    sums.arrays["layers.1.gram"] *= 3


def negative(sums: ShardSums) -> None:
    sums.arrays["layers.1.gram"][0] = -sums.arrays["layers.1.gram"][0]


def outside(sums: ShardSums) -> None:
    sums.arrays["layers.1.cross"] += np.arange(8, dtype=np.int64) << 22


def enormous(sums: ShardSums) -> None:
    sums.arrays["layers.1.gram"][3] = 2**62


def zero(sums: ShardSums) -> None:
    sums.arrays["layers.1.cross"][:] = 0


def round_as_of_many(sums: ShardSums) -> None:
    """The same trace in every direction."""
    packed = sums.arrays["layers.1.gram"]
    corners = [row * 8 - row * (row - 1) // 2 for row in range(8)]
    trace = packed[corners].sum()
    packed[:] = 0
    packed[corners] = trace // 8


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        (tripled, "layers.1.gram", "trace"),
        (negative, "layers.1.gram", "semidefinite"),
        (outside, "layers.1.cross", "exceeds the"),
        (zero, "layers.1.cross", "zero"),
        (enormous, "layers.1.gram", r"2\*\*62"),
    ],
)
def test_what_no_features_can_give_is_refused(tmp_path: Path, change: Change, where: str, what: str) -> None:
    sums = honest_sums(8, 200, 2, 8, 0)
    manifest = manifest_of(sums, 2)
    change(sums)
    with pytest.raises(ContributionError, match=what) as caught:
        check(written(tmp_path / "file", manifest, sums), 8)
    assert caught.value.where == where
    assert caught.value.todo


def test_other_exponents_than_the_body_s_are_refused(tmp_path: Path) -> None:
    sums = honest_sums(8, 50, 1, 8, 0)
    path = written(tmp_path / "file", manifest_of(sums, 1), sums)
    with StatisticsFile(path) as file, pytest.raises(ContributionError) as caught:
        validate(file, [15, 16], [8, 8])
    assert caught.value.where == "manifest.exponents"


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_gram_of_more_directions_than_tokens_is_refused(tmp_path: Path, tokens: int) -> None:
    sums = honest_sums(8, tokens, 1, 8, 0)
    round_as_of_many(sums)
    problem = f"8 equally strong directions, more than its {tokens} tokens"
    with pytest.raises(ContributionError, match=problem) as caught:
        check(written(tmp_path / "file", manifest_of(sums, 1), sums), 8)
    assert caught.value.where == "layers.1.gram"


CHECK = """
from moerge.statistics.validate import validate
from moerge_proto.statistics_file import StatisticsFile
def call(path):
    with StatisticsFile(path) as file:
        manifest = file.manifest
        assert validate(file, manifest.exponents, [manifest.hidden_size] * manifest.layers) == []
"""


def test_check_memory_is_one_triangle_and_one_square(tmp_path: Path) -> None:
    needs = {}
    for hidden in (768, 1536):
        sums = honest_sums(hidden, 4096, 1, hidden, 0)
        path = written(tmp_path / str(hidden), manifest_of(sums, 1), sums)
        assert check(path, hidden) == []
        needs[path] = 12 * hidden**2
    require_growth(CHECK, needs)
