"""Trunks: every non-MLP parameter, merged over an ordered list of experts."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from moerge_proto.digests import Digest
from moerge_proto.messages import FileEntry, Message


class NewTrunk(Message):
    """Asks for a merge of `experts` in this order; None means every ready expert, in order of arrival."""

    method: Literal["average"] = "average"
    experts: list[Digest] | None = Field(default=None, min_length=1)


class Trunk(Message):
    """A trunk in the dense family's own tensor names, so that a worker can add its own MLPs to it.

    `exponents` holds, per layer, the number of fractional bits with which gram and cross are sent.
    """

    digest: Digest
    method: str
    experts: list[Digest]
    family: str
    hidden_size: int
    layers: int
    exponents: list[int]
    files: list[FileEntry]
    current: bool
    created: datetime
