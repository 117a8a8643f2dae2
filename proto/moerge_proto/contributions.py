"""Router contributions as the coordinator records them; their content is the statistics file."""

from datetime import datetime

from pydantic import Field

from moerge_proto.digests import Digest
from moerge_proto.messages import Message


class NewContribution(Message):
    """Registers an uploaded statistics file. `software` says which builds made it; it is kept in the lineage.

    `supersedes` names the one earlier contribution whose shards this one may claim again; the swap is atomic.
    """

    sha256: Digest
    supersedes: Digest | None = None
    software: dict[str, str] = Field(default_factory=dict)


class Contribution(Message):
    """An accepted contribution. `active` is false once another one superseded it."""

    number: int
    digest: Digest
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
