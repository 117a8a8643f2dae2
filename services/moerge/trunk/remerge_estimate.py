"""What merging a trunk anew, with newcomers' experts too, is expected to gain."""

from typing import NamedTuple

WORTH = 1.0
"""Points of the normalised average from which on a remerge pays: it costs every owner a pass."""


class Estimate(NamedTuple):
    """Points that members are expected to lose, and that the average over a version's domains is expected to gain."""

    fall: float
    gain: float


def estimate(members: float, newcomers: float, merged: int, joining: int, domains: int) -> Estimate:
    """The estimate that `moerge_proto.history.Remerge` explains.

    Args:
        members, newcomers: mean oracle, under the trunk so far, of the domains whose experts it was merged from, and of
            the others; normalised, in points.
        merged: experts in the trunk so far.
        joining: how many newcomers there are.
        domains: of the version, newcomers' too.
    """
    won = joining / domains * (members - newcomers)
    if merged == 1:
        fall = max(won / 2, 0.0)
    else:
        fall = max((100 - members) * joining / ((merged - 1) * (merged + joining)), 0.0)
    return Estimate(fall, won - fall)
