"""Owners of domains, and the bearer tokens with which they and others speak to the coordinator."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from moerge_proto.digests import Name
from moerge_proto.messages import Message


class Role(StrEnum):
    """Operator: everything. Owner: its own domains. Reader: lists and pulls versions."""

    OPERATOR = "operator"
    OWNER = "owner"
    READER = "reader"


class NewOwner(Message):
    """Asks for an owner who speaks for `domains`."""

    name: Name
    domains: list[Name] = Field(min_length=1)


class Owner(Message):
    name: str
    domains: list[str]
    created: datetime


class NewToken(Message):
    """Asks for a token. `owner` names whose it is, for the role owner only."""

    role: Role
    owner: Name | None = None


class Token(Message):
    """A fresh token. `secret` is shown this once; the coordinator keeps its hash."""

    id: int
    role: Role
    owner: str | None
    secret: str


class Identity(Message):
    """Who the presented token belongs to."""

    role: Role
    owner: str | None
    domains: list[str]

    @property
    def who(self) -> str:
        """For histories: the owner's name, or the role."""
        return self.owner or self.role.value
