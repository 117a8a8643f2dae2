"""The expected gain of a remerge with newcomers' experts."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from moerge.trunk.head_kinds import HEADS
from moerge_proto.bodies import HeadMethod

WORTH = 1.0
"""Least gain of the normalised average, in points, that is worth a remerge: it costs every owner a pass."""


class Estimate(NamedTuple):
    """Points: the expected loss of members, and the expected gain of the average over a version's domains."""

    fall: float
    gain: float


def gainers(newcomers: Iterable[str], fitted: Collection[str], head: HeadMethod) -> list[str]:
    """The newcomers who are expected to gain by a remerge: all but those `fitted` to the body under a solved head.

    In trials (docs/quality.md, "Experts that join") those were as good as remerged ones, unless `is_outnumbered`.
    """
    return [name for name in newcomers if not (HEADS[head].solved and name in fitted)]


def is_outnumbered(merged: int, newcomers: int, gaining: int) -> bool:
    """Tell whether a body of `merged` experts has at least as many newcomers, not all of them `gainers`.

    Then a remerge gained 0.2 to 3.1 points in trials (docs/quality.md, "Experts that join"), and no oracle tells.
    """
    return merged <= newcomers and gaining < newcomers


def estimate(members: float, newcomers: float, merged: int, joining: int, domains: int) -> Estimate:
    """The estimate that `moerge_proto.history.Remerge` explains.

    Args:
        members, newcomers: mean normalised oracle under the current body, in points; of the newcomers who gain.
        merged, joining, domains: numbers of experts in the body, of these newcomers, and of all the version's domains.
    """
    won = joining / domains * (members - newcomers)
    if merged == 1:
        fall = max(won / 2, 0.0)
    else:
        fall = max((100 - members) * joining / ((merged - 1) * (merged + joining)), 0.0)
    return Estimate(fall, won - fall)
