"""Grants: the readers who may use an owner's expert."""

from datetime import datetime
from typing import Protocol

from pydantic import Field

from moerge_proto.digests import Digest, digest_of
from moerge_proto.messages import Message, Moment

ALL = "all"
"""The name that stands for all readers; no token and no group has it."""


class NewGrant(Message):
    """Grants a domain's expert to a reader. `until`: the end of the grant; None: until it is revoked."""

    until: Moment | None = None


class Grant(Message):
    """An owner's decision on a reader of its domain's experts, present and later ones.

    The last one of a domain and a reader counts. `reader`: the name of tokens or of a group of them, or `all`.
    `granted`: False after a revocation. `until`: the end of a grant, None: until it is revoked.
    """

    number: int
    domain: str
    owner: str
    reader: str
    granted: bool
    until: datetime | None
    created: datetime


class Decided(Message):
    """A decision, and the readers who may use the expert after it.

    `still`: after a revocation, the other names by which the reader may still use it, such as a group's.
    """

    grant: Grant
    readers: list[str]
    still: list[str] = Field(default_factory=list)


class ReaderOf(Message):
    """A name to which a domain's experts are granted now."""

    reader: str
    until: datetime | None


class DomainReaders(Message):
    """The readers of a domain's experts. `own_rule`: whether its owner has decided; else the default counts.

    `readers`: the names to which they are granted. `people`: the names of valid tokens that may use them.
    """

    domain: str
    owner: str
    own_rule: bool
    readers: list[ReaderOf]
    people: list[str]


class Usable(Message):
    """A domain whose experts the caller may use. `until`: the end of that, None: until it is revoked."""

    domain: str
    until: datetime | None


class VersionPart(Message):
    """The part of a version that readers may use. `name`: as `3+0123456789abcdef`, or the version's if it is whole.

    `domains`: of its experts, in order; `left_out`: of the version's others. `readers`: names of the valid tokens, or
    `token` and its id. `made`: whether its files exist. `bytes_written`: of files that no other version has; None
    until it is made.
    """

    name: str
    domains: list[str]
    left_out: list[str]
    readers: list[str]
    made: bool
    bytes_written: int | None


class Decision(Protocol):
    """The facts of a grant that never change."""

    @property
    def domain(self) -> str: ...
    @property
    def reader(self) -> str: ...
    @property
    def granted(self) -> bool: ...
    @property
    def until(self) -> datetime | None: ...


def grant_content(grant: Decision) -> Digest:
    """The digest of a decision in the public log."""
    until = None if grant.until is None else grant.until.isoformat()
    return digest_of({"domain": grant.domain, "reader": grant.reader, "granted": grant.granted, "until": until})
