"""Each owner's influence on a version's routers; the coordinator stores it with the version."""

from moerge_proto.messages import Message


class DomainInfluence(Message):
    """The effect of a domain's sums on the routers. Lists have one number per domain, averaged over layers.

    `effective_rank` of its gram: trace^2 / the sum of the squared entries. `gram_distance`: 1 minus the cosine between
    its gram and the sum of the others'. `mean_distances`: between its mean feature and each domain's, in units of that
    domain's spread; a small one marks tokens that it may draw. `drawn`: the expected share of each domain's tokens that
    score this domain's expert above their own; `drawn_most`, of the layer with the largest share. `moved`: the change
    of each domain's scores, in units of their own spread, if the routers are solved without this owner.
    """

    domain: str
    owner: str
    tokens: int
    documents: int
    effective_rank: float
    gram_distance: float
    mean_distances: list[float]
    drawn: list[float]
    drawn_most: list[float]
    moved: list[float]


class VersionInfluence(Message):
    """The influence of all owners, measured in `layers`; `domains` in slot order.

    `warnings` name owners with figures unlike honest ones, or the reason for a missing measurement.
    """

    layers: list[int]
    domains: list[DomainInfluence]
    warnings: list[str]
