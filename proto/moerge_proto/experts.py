"""Experts: dense checkpoints, one per domain, each by one owner."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import FileEntry, Message
from moerge_proto.problems import Problem


class ExpertState(StrEnum):
    """received -> ready, or refused with the reason."""

    RECEIVED = "received"
    READY = "ready"
    REFUSED = "refused"


class NewExpert(Message):
    """Registers files as the expert of `domain`. `files` maps names in the folder to digests.

    They are uploaded before, or the coordinator fetches them: each lies below the address `source`, which must be one
    of those that the operator allows.
    """

    domain: Name
    files: dict[str, Digest] = Field(min_length=1, max_length=1000)
    source: str | None = Field(default=None, max_length=1000)
    license: str = Field(default="unknown", pattern=r"^[A-Za-z0-9.+-]{1,64}$")
    """An SPDX identifier, such as Apache-2.0."""


class Expert(Message):
    """An expert. `digest` names its files; `number` gives the order in which experts came.

    While its files are still to be fetched from `source`, their sizes are 0 and the family is empty.
    """

    number: int
    digest: Digest
    domain: str
    owner: str
    license: str
    family: str
    state: ExpertState
    problem: Problem | None
    files: list[FileEntry]
    source: str | None
    created: datetime
