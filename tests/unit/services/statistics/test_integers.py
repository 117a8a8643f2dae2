"""Sums as integers are added exactly, and an overflow is an error, never a wrap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moerge.errors import ContributionError
from moerge.statistics.integers import LIMIT, add, pack, to_floats, to_integers, unpack
from moerge_proto.statistics_file import Int64

LIMITS = np.iinfo(np.int64)


@given(st.lists(st.tuples(st.integers(LIMITS.min, LIMITS.max), st.integers(LIMITS.min, LIMITS.max)), min_size=1))
def test_addition_is_exact_or_refused(pairs: list[tuple[int, int]]) -> None:
    left, right = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))
    exact = [a + b for a, b in pairs]
    if all(LIMITS.min <= total <= LIMITS.max for total in exact):
        assert add(left, right).tolist() == exact
    else:
        with pytest.raises(ContributionError, match="int64"):
            add(left, right)


@given(st.floats(-1e12, 1e12), st.integers(0, 16))
def test_rounding_moves_a_sum_by_half_a_unit_at_most(value: float, exponent: int) -> None:
    [back] = to_floats(to_integers(np.array([value]), exponent), exponent)
    assert abs(back - value) <= 2.0 ** -(exponent + 1) + abs(value) * 2.0**-52


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, LIMIT / 2**16, -LIMIT / 2**16])
def test_what_is_no_finite_number_below_the_limit_is_refused(value: float) -> None:
    with pytest.raises(ContributionError, match="not a finite number"):
        to_integers(np.array([0.0, value]), 16)


@given(arrays(np.int64, st.integers(1, 30).map(lambda h: h * (h + 1) // 2), elements=st.integers(-(2**40), 2**40)))
def test_packing_keeps_every_entry(packed: Int64) -> None:
    hidden = int((np.sqrt(8 * len(packed) + 1) - 1) / 2)
    square = unpack(packed.astype(np.float64), hidden)
    np.testing.assert_array_equal(square, square.T)
    np.testing.assert_array_equal(pack(square), packed)
    np.testing.assert_array_equal(square[np.triu_indices(hidden)], packed)  # row by row
