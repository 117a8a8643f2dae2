"""The coordinator's demands on an owner's worker."""

from typing import Self

from moerge_proto.digests import Digest, digest_of
from moerge_proto.messages import Message

LONGEST_WAIT = 55
"""Seconds that a call may wait for other demands; proxies and NATs often end a silent connection after 60."""


class Demands(Message):
    """The demands on one expert's worker.

    Attributes:
        tag: the name of these demands; equal demands have the same one.
        body: the current body, under which contributions count; None: no seed is registered yet.
        version: the newest served version with its parts, to be evaluated; None: no such version.
    """

    tag: Digest
    body: Digest | None
    version: int | None

    @classmethod
    def of(cls, body: str | None, version: int | None) -> Self:
        return cls(tag=digest_of({"body": body, "version": version}), body=body, version=version)
