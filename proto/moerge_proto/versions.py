"""Router versions: immutable, numbered 1, 2, 3, …"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import FileEntry, Message

LambdaScale = Literal["absolute", "relative", "auto"]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SolveOptions(Message):
    """How routers are solved; all of it can be chosen anew without any owner's help.

    `ridge_lambda`: Tikhonov regulariser (DUME eq. 2; 0.01 in the paper), as it stands (`absolute`) or in units of the
    layer's mean diagonal (`relative`); with `auto` each layer gets the one that errs least on the tuning splits.
    `domain_weights`: domain -> weight of its statistics, 1 for those not named; `balanced` weighs all domains as if
    they had contributed equally many tokens. `top_k`: experts per token. `temperature` divides the router's scores;
    it matters for top_k > 1 only.
    """

    ridge_lambda: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    lambda_scale: LambdaScale = "absolute"
    domain_weights: dict[Name, Weight] | Literal["balanced"] = Field(default_factory=dict)
    top_k: int = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class NewVersion(Message):
    """Asks for a version of `trunk` (None: the current one) with `experts` in this order.

    `experts=None` means every ready expert that has contributed under the trunk, in order of arrival. `tied` leaves the
    head out where it is the embedding.
    """

    trunk: Digest | None = None
    experts: list[Digest] | None = Field(default=None, min_length=1)
    options: SolveOptions = SolveOptions()
    tied: bool = False


class VersionFile(FileEntry):
    """`new` tells whether publishing this version wrote the file, or found it there. `tensors` counts those in it."""

    new: bool
    tensors: int = 0


class Lineage(Message):
    """All that a version is a function of (law 3). Contributions are sorted by digest."""

    trunk: Digest
    experts: list[Digest]
    domains: list[str]
    contributions: list[Digest]
    options: SolveOptions
    tied: bool = False
    solver: str


class SolvedLayer(Message):
    """What the solve of one layer showed.

    `ridge_lambda`: as it was added to the diagonal. `condition`: of A + lambda I, estimated from below. `norms`: of the
    columns before normalisation, per domain. `cosines`: between the columns, D x D.
    """

    ridge_lambda: float
    condition: float
    norms: list[float]
    cosines: list[list[float]]


class SolveReport(Message):
    """A version's routers, layer by layer; the file moerge-report.json."""

    domains: list[str]
    layers: list[SolvedLayer]


class Version(Message):
    number: int
    lineage: Lineage
    files: list[VersionFile]
    bytes_total: int
    bytes_written: int
    created: datetime
