"""The noise of private sums is discrete Gaussian, and its cost is at least the exact one."""

import math

import numpy as np
import pytest

from moerge.noise.accountant import delta_of, epsilon_of, rho_of
from moerge.noise.gaussian import SIGMA, Generator, discrete_gaussian

SAMPLES = 40_000


@pytest.fixture(scope="module")
def samples() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return discrete_gaussian(SAMPLES, Generator(bytes(32)))


def test_noise_has_the_normal_distribution(samples: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Kolmogorov and Smirnov's test at 1 %; the key is fixed, so it always gives the same."""
    normal = np.array([(1 + math.erf(x / SIGMA / math.sqrt(2))) / 2 for x in np.sort(samples).tolist()])
    steps = np.arange(SAMPLES) / SAMPLES
    assert max(abs(normal - steps).max(), abs(normal - steps - 1 / SAMPLES).max()) < 1.63 / math.sqrt(SAMPLES)
    assert abs(samples).max() > 3.5 * SIGMA


def test_noise_has_no_pattern_in_its_last_bits(samples: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Pearson's chi-squared test of the remainders by 64, at 1 %."""
    counts = np.bincount(samples % 64, minlength=64)
    assert ((counts - SAMPLES / 64) ** 2).sum() / (SAMPLES / 64) < 92.0


def test_secret_generators_differ() -> None:
    assert discrete_gaussian(8, Generator.secret()).tolist() != discrete_gaussian(8, Generator.secret()).tolist()


@pytest.mark.parametrize("ratio", [0.5, 1, 2, 4, 8])
def test_the_cost_bounds_the_exact_one(ratio: float) -> None:
    """Noise of `ratio` times the sensitivity; the exact delta is a sum over the integers."""
    step = 64
    at = np.arange(-60 * step, 60 * step + 1)  # in steps of the sensitivity, for all but 1e-12 of the noise
    weights = np.exp(-((at / (ratio * step)) ** 2) / 2)
    probabilities = weights / weights.sum()
    moved = np.roll(probabilities, step)

    def exact(epsilon: float) -> float:
        return float(np.maximum(0, probabilities - math.exp(epsilon) * moved)[step:].sum())

    rho = 1 / (2 * ratio**2)
    claimed = epsilon_of(rho, 1e-6)
    assert exact(claimed) <= 1e-6 < exact(claimed / 1.12)
    for epsilon in (claimed / 4, claimed / 2, claimed):
        assert exact(epsilon) <= delta_of(rho, epsilon)


@pytest.mark.parametrize(
    ("ratio", "epsilon"), [(0.5, 11.6886), (1, 5.2215), (2, 2.4191), (4, 1.1429), (8, 0.5451), (20, 0.2059)]
)
def test_the_cost_is_that_of_dp_accounting(ratio: float, epsilon: float) -> None:
    """RdpAccountant of release 0.6.0 for GaussianDpEvent(ratio); it needs attrs below 24, so it isn't installed."""
    assert epsilon_of(1 / (2 * ratio**2), 1e-6) == pytest.approx(epsilon, abs=1e-4)


def test_a_budget_is_spent_and_no_more() -> None:
    for epsilon in (0.1, 1.0, 10.0):
        rho = rho_of(epsilon, 1e-6)
        assert delta_of(rho, epsilon) <= 1e-6 < delta_of(rho * 1.001, epsilon)
        assert epsilon_of(rho, 1e-6) == pytest.approx(epsilon)
        assert delta_of(0.0, epsilon) == 0
