"""Honest contributions of every kind pass: repeated tokens in any width, real models, zero gains. Near misses don't."""

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch

from moerge.errors import ContributionError
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.integers import LIMIT
from moerge.statistics.validate import validate
from moerge_proto.statistics_file import StatisticsFile
from support.models import expert
from support.passes import own_pass, sums_of
from support.statistics import LAYERS, honest_sums, manifest_of, shard_of, written


def check(path: Path, sums: ShardSums, shards: int = 1, nonzero: int | None = None, tokens: int = 0) -> list[str]:
    """Warnings of the file of `sums`, whose manifest claims `tokens` instead of the true count if they are given."""
    manifest = manifest_of(sums, shards).model_copy(update={"tokens": tokens or sums.tokens})
    with StatisticsFile(written(path, manifest, sums)) as file:
        return validate(
            file, manifest.exponents, [len(sums.arrays["layers.0.cross"]) if nonzero is None else nonzero] * LAYERS
        )


@pytest.mark.parametrize("hidden", [2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("kinds", [1, 2])
def test_few_kinds_of_tokens_very_often_pass_in_any_width(tmp_path: Path, hidden: int, kinds: int) -> None:
    """Equal rows round the same way every time, so float32's error grows with their number, not with its root."""
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(kinds, hidden, generator=generator)
        u = x / x.pow(2).mean(dim=1, keepdim=True).sqrt()
        repeated = u[torch.randint(0, kinds, (20_000,), generator=generator)]
        assert check(tmp_path / "file", shard_of(repeated)) == []


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_real_models_pass_with_one_token_or_repeated_document(tmp_path: Path, family: str) -> None:
    folder = expert(tmp_path / "expert", seed=1, family=family, num_hidden_layers=LAYERS)
    for rows in ([[5]], [[5] * 60] * 40, [[1, 2, 3]] * 500):
        sums = sums_of(own_pass(folder, LAYERS), rows, 4096)
        check(tmp_path / "file", sums)  # layer 0 may be under half of the trace: eps
        check(tmp_path / "file", reduce(add, [sums] * 7), shards=7)


def test_integers_rounded_in_many_shards_pass(tmp_path: Path) -> None:
    """A token a shard: rounding alone may move every entry by half a unit a shard."""
    for hidden in (2, 5, 24):
        sums = honest_sums(hidden, 1, 200, 1, seed=hidden)
        assert check(tmp_path / "file", sums, shards=200) == []


def test_a_token_count_of_half_is_refused(tmp_path: Path) -> None:
    sums = honest_sums(8, 200, 1, 8, 0)
    with pytest.raises(ContributionError, match="trace"):
        check(tmp_path / "file", sums, tokens=100)


def test_a_trace_of_a_fiftieth_too_much_is_refused(tmp_path: Path) -> None:
    sums = honest_sums(8, 200, 1, 8, 0)
    sums.arrays["layers.0.gram"] += sums.arrays["layers.0.gram"] // 50
    with pytest.raises(ContributionError, match="trace"):
        check(tmp_path / "file", sums)


def test_features_behind_zero_gains_must_be_zero(tmp_path: Path) -> None:
    """Of 8 dimensions 6 have a gain: their features may fill 6 units a token, not 8."""
    sums = honest_sums(8, 200, 1, 8, 0)
    with pytest.raises(ContributionError, match="exceeds 1200"):
        check(tmp_path / "file", sums, nonzero=6)


def test_a_cross_of_other_features_is_refused(tmp_path: Path) -> None:
    """The sum of 1000 equal features has norm 1000 |u|; a tenth more can't come from this gram."""
    u = torch.ones(1000, 6)
    sums = shard_of(u)
    assert check(tmp_path / "file", sums) == []
    sums.arrays["layers.0.cross"] += sums.arrays["layers.0.cross"] // 10
    with pytest.raises(ContributionError, match="exceeds the") as caught:
        check(tmp_path / "file", sums)
    assert caught.value.where == "layers.0.cross"


@pytest.mark.parametrize("value", [LIMIT, -LIMIT, np.iinfo(np.int64).min, np.iinfo(np.int64).max])
@pytest.mark.parametrize("part", ["gram", "cross"])
def test_values_of_either_sign_at_the_limit_are_refused(tmp_path: Path, part: str, value: int) -> None:
    sums = honest_sums(4, 50, 1, 4, 0)
    sums.arrays[f"layers.1.{part}"][1] = value
    with pytest.raises(ContributionError, match=r"2\*\*62") as caught:
        check(tmp_path / "file", sums)
    assert caught.value.where == f"layers.1.{part}"


@pytest.mark.parametrize(("share", "warnings"), [(0.55, 0), (0.45, 1)])
def test_the_warning_stands_at_half_of_the_trace(tmp_path: Path, share: float, warnings: int) -> None:
    sums = shard_of(torch.full((400, 6), share**0.5))
    found = check(tmp_path / "file", sums)
    assert [line.partition(":")[0] for line in found] == [f"layers.{layer}.gram" for layer in range(warnings * LAYERS)]
    assert all(": trace" in line for line in found)
