"""The public log: an entry for each published body, head and version, and for each grant, in one hash chain.

Each entry has the digest of the one before. So the number of entries and the digest of the last one name the whole log:
they are its head. Owners with equal heads were shown the same log. RFC 9162 has a tree instead, so that clients needn't
read every entry; this log has an entry or two per publication, and every client reads all.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from pydantic import JsonValue

from moerge_proto.digests import Digest, canonical_json, digest_of
from moerge_proto.messages import FileEntry, Message
from moerge_proto.version_signatures import ALGORITHM, loaded_key, public_pem, signed_bytes

_PAYLOAD = "application/vnd.moerge.log-head+json"
_HEAD = re.compile(r"([0-9]{1,10}):([0-9a-f]{64})")
Published = Literal["body", "head", "version", "grant"]


def title(kind: Published, name: str) -> str:
    """A publication's name for people."""
    return f"head of version {name}" if kind == "head" else f"{kind} {name[:12] if kind == 'body' else name}"


class LogEntry(Message):
    """One publication. `number`: 1, 2, 3, …; `previous`: the digest of the entry before, of the first one zeros.

    `name`: a body's digest; a version's name; of a head, the name of the first version that has it; a grant's number.
    `digest`: of the content, as `body_content`, `version_content`, `grant_content`, or a head's file.
    """

    number: int
    kind: Published
    name: str
    digest: Digest
    created: datetime
    previous: Digest

    @property
    def hash(self) -> Digest:
        return digest_of(self.model_dump(mode="json"))

    @property
    def title(self) -> str:
        return title(self.kind, self.name)


class LogHead(Message):
    """The number of a log's entries, and the digest of the last one.

    `key`: the PEM of the key of versions, with its `signature` in base64; None: the coordinator doesn't have the key.
    """

    size: int = 0
    hash: Digest = "0" * 64
    key: str | None = None
    signature: str | None = None

    @classmethod
    def parse(cls, line: str) -> Self:
        """The head of a line; ValueError: it is none."""
        if (found := _HEAD.fullmatch(line.strip())) is None:
            raise ValueError("not the head of a log: expected its number of entries, a colon and 64 digits")
        return cls(size=int(found[1]), hash=found[2])

    @property
    def line(self) -> str:
        """The head without its signature, to compare by phone or mail."""
        return f"{self.size}:{self.hash}"

    def signed(self, key: EllipticCurvePrivateKey) -> "LogHead":
        signature = base64.b64encode(key.sign(self._signed_bytes, ALGORITHM)).decode()
        return self.model_copy(update={"key": public_pem(key), "signature": signature})

    def require_valid(self) -> None:
        """Requires that a signature, if there is one, is by its key; ValueError: it isn't."""
        if self.key is None and self.signature is None:
            return
        try:
            loaded_key(self.key or "").verify(base64.b64decode(self.signature or ""), self._signed_bytes, ALGORITHM)
        except (ValueError, InvalidSignature) as error:
            raise ValueError("the signature of the log's head is not by its key") from error

    @property
    def _signed_bytes(self) -> bytes:
        return signed_bytes(canonical_json({"size": self.size, "hash": self.hash}), _PAYLOAD)


def extended(head: LogHead, entries: Iterable[LogEntry]) -> LogHead:
    """The head of a log after further entries; ValueError: one doesn't follow."""
    size, last = head.size, head.hash
    for entry in entries:
        if (entry.number, entry.previous) != (size + 1, last):
            raise ValueError(f"entry {entry.number} ({entry.title}) doesn't follow entry {size}")
        size, last = entry.number, entry.hash
    return LogHead(size=size, hash=last)


def require_once(entries: Iterable[LogEntry]) -> None:
    """Requires one entry per publication; ValueError: a later entry has its kind and name.

    Otherwise a coordinator could serve one owner the first entry's content, and all others the last one's.
    """
    known = set[tuple[Published, str]]()
    for entry in entries:
        if (entry.kind, entry.name) in known:
            raise ValueError(f"entry {entry.number} publishes {entry.title} again")
        known.add((entry.kind, entry.name))


class BodyContent(Protocol):
    """The facts of a body that never change."""

    @property
    def digest(self) -> str: ...
    @property
    def config(self) -> Mapping[str, JsonValue]: ...
    @property
    def exponents(self) -> Sequence[int]: ...
    @property
    def files(self) -> Sequence[FileEntry]: ...


def body_content(body: BodyContent) -> Digest:
    """A digest of all that sums under a body depend on, and of its other files."""
    files = {file.name: file.sha256 for file in body.files}
    return digest_of(
        {"digest": body.digest, "config": dict(body.config), "exponents": list(body.exponents), "files": dict(files)}
    )


def version_content(files: Iterable[FileEntry]) -> Digest:
    """A digest of a version's files with their names, its lineage and published card included."""
    return digest_of({file.name: file.sha256 for file in files})
