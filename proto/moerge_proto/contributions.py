"""Router and trunk contributions as the coordinator records them; their content is the statistics file."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from moerge_proto.digests import Digest
from moerge_proto.messages import Message

Short = Annotated[str, StringConstraints(max_length=200)]


class NewContribution(Message):
    """Registers an uploaded statistics file. `software` says which builds made it; it is kept in the lineage.

    `supersedes` names the earlier contributions whose place this one takes, and whose shards it may claim again; the
    swap is atomic.
    """

    sha256: Digest
    supersedes: list[Digest] = Field(default_factory=list, max_length=10_000)
    software: dict[Short, Short] = Field(default_factory=dict, max_length=100)


class Contribution(Message):
    """An accepted router contribution. `active` is false once another one superseded it, or it was withdrawn."""

    number: int
    digest: Digest
    split: Literal["statistics", "tuning"]
    owner: str
    domain: str
    expert: Digest
    trunk: Digest
    tokens: int
    documents: int
    shards: int
    size: int
    active: bool
    warnings: list[str]
    software: dict[str, str]
    created: datetime
    withdrawn: datetime | None


class TrunkContribution(Message):
    """An accepted trunk contribution: of one expert, for every trunk that it is merged into."""

    number: int
    digest: Digest
    owner: str
    domain: str
    expert: Digest
    tokens: int
    documents: int
    size: int
    active: bool
    software: dict[str, str]
    created: datetime
    withdrawn: datetime | None
