"""The expected gain of a remerge with newcomers' experts."""

from typing import NamedTuple

WORTH = 1.0
"""Least gain of the normalised average, in points, that is worth a remerge: it costs every owner a pass."""


class Estimate(NamedTuple):
    """Points: the expected loss of members, and the expected gain of the average over a version's domains."""

    fall: float
    gain: float


def estimate(members: float, newcomers: float, merged: int, joining: int, domains: int) -> Estimate:
    """The estimate that `moerge_proto.history.Remerge` explains.

    Args:
        members, newcomers: mean normalised oracle under the current body, in points.
        merged, joining, domains: numbers of experts in the body, of newcomers, and of all the version's domains.
    """
    won = joining / domains * (members - newcomers)
    if merged == 1:
        fall = max(won / 2, 0.0)
    else:
        fall = max((100 - members) * joining / ((merged - 1) * (merged + joining)), 0.0)
    return Estimate(fall, won - fall)
