"""How the versions of one trunk did as experts joined, and what a remerge is expected to gain."""

from moerge_proto.digests import Digest
from moerge_proto.messages import Message
from moerge_proto.trunks import NewTrunk


class DomainMove(Message):
    """A domain on a version of a trunk: its normalised scores, and the points by which it `moved`.

    That is since the version before on the same trunk which it was evaluated on with the same expert; None if there is
    none. The trunk was not merged from a `newcomer`'s expert.
    """

    domain: str
    newcomer: bool
    normalised: float
    normalised_oracle: float
    moved: float | None


class TrunkVersion(Message):
    """A version of a trunk, as its domains' owners evaluated it.

    `average` is over all domains, so None while some are `missing`; so is `behind`, the points by which the newcomers'
    normalised scores lie behind the others', on average. To an owner `scores` tells its own domains' only, and
    `behind` is None.
    """

    version: int
    newcomers: list[str]
    scores: list[DomainMove]
    average: float | None
    missing: list[str]
    behind: float | None


class Remerge(Message):
    """What it would gain to merge `trunk` anew, with the experts of `newcomers` too: `merge`, as it is asked for.

    `expected` is an estimate, in points of the normalised average over the domains of `version`. It rests on their
    oracles under the trunk, which tell what the trunk costs without the routing: m of D domains are newcomers, with N
    on average (`newcomers_oracle`), the others are members, with M (`members_oracle`). Once merged, a newcomer is
    expected to have what the members then have, M - `fall`: expected = m / D * (M - N) - fall.

    A trunk of k experts is taken to cost its members in proportion to 1 - 1/k, as it does if experts lie equally far
    from where they started, in directions of their own, and the loss is quadratic there. So with k experts in the
    trunk, fall = (100 - M) * m / ((k - 1) (k + m)), never below 0. A trunk of one costs its member nothing, and tells
    nothing; then fall = m / D * (M - N) / 2, from the newcomers by the same reasoning.

    All of it is None while oracles are `missing`, and where no member is in the version. `recommended`: the trunk is
    the current one, at least one point is expected, and it hasn't been done. Once it has, `after` is a version of the
    same experts that such a trunk has, and `real` the points by which its average differs from that of `version`.
    """

    trunk: Digest
    version: int
    newcomers: list[str]
    missing: list[str]
    members_oracle: float | None
    newcomers_oracle: float | None
    fall: float | None
    expected: float | None
    recommended: bool
    merge: NewTrunk
    after: int | None
    real: float | None


class TrunkHistory(Message):
    """The newest versions of one trunk, at most 100, oldest first; from what owners reported.

    `remerge` is of the newest of them that has nobody withdrawn, if it has newcomers; `before`, of the trunk in whose
    place this one was merged. A trunk of the method `base` has neither. Owners are told neither.
    """

    trunk: Digest
    versions: list[TrunkVersion]
    remerge: Remerge | None
    before: Remerge | None
