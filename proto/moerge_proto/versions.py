"""Router versions: immutable, numbered 1, 2, 3, …"""

from datetime import datetime

from pydantic import Field

from moerge_proto.digests import Digest
from moerge_proto.messages import FileEntry, Message


class SolveOptions(Message):
    """`ridge_lambda`: Tikhonov regulariser (DUME eq. 2; 0.01 in the paper). `top_k`: experts per token.

    `temperature` divides the router's scores; it matters for top_k > 1 only.
    """

    ridge_lambda: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    top_k: int = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class NewVersion(Message):
    """Asks for a version of `trunk` (None: the current one) with `experts` in this order.

    `experts=None` means every ready expert that has contributed under the trunk, in order of arrival.
    """

    trunk: Digest | None = None
    experts: list[Digest] | None = Field(default=None, min_length=1)
    options: SolveOptions = SolveOptions()


class VersionFile(FileEntry):
    """`new` tells whether publishing this version wrote the file, or found it there."""

    new: bool


class Lineage(Message):
    """All that a version is a function of (law 3). Contributions are sorted by digest."""

    trunk: Digest
    experts: list[Digest]
    domains: list[str]
    contributions: list[Digest]
    options: SolveOptions
    solver: str


class Version(Message):
    number: int
    lineage: Lineage
    files: list[VersionFile]
    bytes_total: int
    bytes_written: int
    created: datetime
