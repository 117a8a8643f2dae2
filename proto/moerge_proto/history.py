"""Scores of one body's versions as experts joined, and the expected gain of a remerge."""

from moerge_proto.bodies import NewBody
from moerge_proto.digests import Digest
from moerge_proto.messages import Message


class DomainMove(Message):
    """A domain's normalised scores on a version. The body doesn't contain a `newcomer`'s expert.

    `moved`: points since the last version on the same body that was evaluated with the same expert; None without one.
    """

    domain: str
    newcomer: bool
    normalised: float
    normalised_oracle: float
    moved: float | None


class BodyVersion(Message):
    """A version of a body, as its domains' owners evaluated it.

    `average` of all domains, and `behind`, the others' average minus the newcomers', are None while some are `missing`.
    An owner sees only its own domains' `scores`, and no `behind`.
    """

    version: int
    newcomers: list[str]
    scores: list[DomainMove]
    average: float | None
    missing: list[str]
    behind: float | None


class Remerge(Message):
    """The expected gain of merging `body` again with the experts of `newcomers`: the request is `merge`.

    `expected` is an estimate, in points of the normalised average over the domains of `version`. It uses their oracles
    under the body, which show the body's cost without the routing's. m of D domains are newcomers, with N on average
    (`newcomers_oracle`); experts in the body are members, with M (`members_oracle`). After the merge, newcomers are
    expected to reach the members' score, M - `fall`: expected = m / D * (M - N) - fall. Newcomers in `fitted` have MLPs
    fitted to the body under a solved head. Few of them gain nothing, and they don't count in m and N. If all newcomers
    are such, expected = 0. `outnumbered`: the body has no more experts than newcomers, and some of these are fitted.
    Then a remerge gains, but no oracle shows how much: `fall` and `expected` are None.

    The model: a body of k experts costs its members in proportion to 1 - 1/k, if experts are equally far from the seed
    model, in independent directions, and the loss is quadratic there. So fall = (100 - M) * m / ((k - 1) (k + m)),
    never below 0. For k = 1, fall = m / D * (M - N) / 2, from the newcomers by the same reasoning.

    Otherwise all are None while oracles are `missing`, or if no member is in the version. An oracle counts from
    versions of the same experts and head. `recommended`: the body is current, the remerge isn't done, and at least one
    point is expected or the body is outnumbered. Afterwards `after` is the remerged body's version of the same experts,
    and `real` the difference of its average from that of `version`.
    """

    body: Digest
    version: int
    newcomers: list[str]
    fitted: list[str]
    missing: list[str]
    members_oracle: float | None
    newcomers_oracle: float | None
    fall: float | None
    expected: float | None
    outnumbered: bool
    recommended: bool
    merge: NewBody
    after: int | None
    real: float | None

    @property
    def without_estimate(self) -> str | None:
        """The gain in words where oracles don't tell it; otherwise None."""
        if self.outnumbered:
            return "0.2 to 3.1 points, as in trials, because the body has no more experts than newcomers"
        if self.fitted == self.newcomers:
            return "0, because their MLPs are fitted to the body and the head is solved"
        return None


class BodyHistory(Message):
    """The newest versions of one body, at most 100, oldest first. Owners see neither `remerge` nor `before`.

    `remerge`: for the newest version without withdrawn experts, if it has newcomers; `before`: for that of the replaced
    body. A body of the method `seed` has neither.
    """

    body: Digest
    versions: list[BodyVersion]
    remerge: Remerge | None
    before: Remerge | None
