"""The cost of discrete Gaussian noise: zero-concentrated differential privacy (zCDP), whose costs add up.

Noise of deviation s on integers that one document moves by at most r in Euclidean norm costs rho = r^2 / (2 s^2)
(Canonne, Kamath and Steinke, arXiv 2004.00010, theorem 14).
"""

import math
from functools import cache

_STEPS = 100  # of a bisection
_MOST_RHO = 1e4


def delta_of(rho: float, epsilon: float) -> float:
    """The least known delta such that rho-zCDP is (epsilon, delta)-DP (the same, corollary 13).

    It is min over a > 1 of exp((a - 1)(a rho - epsilon)) / (a - 1) (1 - 1 / a)^a; every a gives a valid delta.
    """
    if rho <= 0:
        return 0.0
    low, high = 1.01, (epsilon + 1) / (2 * rho) + 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        rises = (2 * middle - 1) * rho - epsilon + math.log1p(-1 / middle) >= 0
        low, high = (low, middle) if rises else (middle, high)
    order = (low + high) / 2
    exponent = (order - 1) * (order * rho - epsilon) + order * math.log1p(-1 / order) - math.log(order - 1)
    return min(1.0, math.exp(min(0.0, exponent)))


@cache
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho that is (epsilon, delta)-DP, rounded down."""
    low, high = 0.0, _MOST_RHO
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, epsilon) <= delta else (low, middle)
    return low


@cache
def epsilon_of(rho: float, delta: float) -> float:
    """The least epsilon of rho at a delta, rounded up."""
    low, high = 0.0, rho + 2 * math.sqrt(rho * math.log(1 / delta))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(rho, middle) <= delta else (middle, high)
    return high
