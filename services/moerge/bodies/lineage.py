"""All inputs of a body that is made on one machine."""

from typing import Annotated

from pydantic import Field

from moerge_proto.bodies import BodyMethod
from moerge_proto.digests import Digest, Name
from moerge_proto.messages import Message


class BodyOptions(Message):
    """Options of the methods. Leave out options that the method doesn't take.

    `weights`: domain -> weight, default 1 (weighted). `base`: the digest of a registered expert, the origin of
    task vectors (ties, dare). `retain`: the share of a task vector's elements that is kept; `scale`: the factor of
    their sum (ties, dare; MergeME appendix). `random_seed` (dare).
    """

    weights: dict[Name, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    base: Digest | None = None
    retain: float = Field(default=0.8, gt=0, le=1)
    scale: float = Field(default=1 / 3, allow_inf_nan=False)
    random_seed: int = Field(default=0, ge=0, lt=2**53)


class BodyLineage(Message):
    """All inputs of a body. `contributions`: for a solved method, one per expert, in order; otherwise none. A seed's
    body has neither experts nor contributions.

    `revision`: of the method's formula. The JSON, whose digest names the body, leaves out 1.
    """

    method: BodyMethod
    options: BodyOptions
    experts: list[Digest]
    contributions: list[Digest]
    revision: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)
