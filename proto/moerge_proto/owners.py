"""Owners of domains, and the coordinator's bearer tokens."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import Message, Moment
from moerge_proto.signatures import JoinRequest, PublicKey

MONTH_SECONDS = 30 * 24 * 3600
Note = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Role(StrEnum):
    """Operator: everything. Owner: its own domains. Reader: lists and pulls versions. Metrics: `/metrics` alone."""

    OPERATOR = "operator"
    OWNER = "owner"
    READER = "reader"
    METRICS = "metrics"


class NewOwner(Message):
    name: Name
    domains: list[Name] = Field(min_length=1)


class OwnerKey(Message):
    """An owner's signing key, valid from `created` until it is `revoked` or replaced."""

    public_key: PublicKey
    fingerprint: Digest
    created: datetime
    revoked: datetime | None


class Owner(Message):
    """An owner.

    Attributes:
        keys: oldest first; without one, it contributes unsigned.
        seen: its last call, to a minute.
        revoked: since when it has no valid key or token; None while it has one, or never had any.
    """

    name: str
    domains: list[str]
    keys: list[OwnerKey]
    created: datetime
    seen: datetime | None
    revoked: datetime | None


class Approval(Message):
    """Approves the owner who made the request. An existing owner gets the request's key only with `replace`."""

    request: JoinRequest
    replace: bool = False


class NewToken(Message):
    """Asks for a token.

    Attributes:
        owner: for the role owner only.
        name: of the person, for the other roles.
        expires: None means never.
    """

    role: Role
    owner: Name | None = None
    name: Name | None = None
    note: Note = ""
    expires: Moment | None = None


class RotateToken(Message):
    """Asks for a new secret. The old one stays valid for `overlap_seconds`."""

    overlap_seconds: int = Field(default=0, ge=0, le=MONTH_SECONDS)


class TokenEntry(Message):
    """A token in a list, without its secret. It is valid until it `expires` or is `revoked`."""

    id: int
    role: Role
    owner: str | None
    name: str | None
    note: str
    created: datetime
    expires: datetime | None
    revoked: datetime | None


class Token(TokenEntry):
    """A new token. `secret` is shown only once; the coordinator stores its hash."""

    secret: str


class Approved(Message):
    """The approved owner, and a new token for its worker."""

    owner: Owner
    token: Token


class Identity(Message):
    """The holder of the presented token. `key`: the owner's newest, revoked or not; None if it never had one."""

    role: Role
    owner: str | None
    domains: list[str]
    key: OwnerKey | None = None
    name: str | None = None

    @property
    def who(self) -> str:
        """The owner's name, the person's with the role, or the role."""
        return self.owner or (f"{self.name}, {self.role.value}" if self.name else self.role.value)
