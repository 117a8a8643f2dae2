"""Owners' Ed25519 keys (RFC 8032): the signed bytes, and their check with a public key.

The signed bytes are the canonical JSON (RFC 8785) of one object. Its purpose prevents reuse of a signature elsewhere:

    input         {"body": …, "digest": …, "domain": …, "kind": …, "owner": …, "purpose": "moerge input", "version": 1}
    join request  {"created": …, "domains": […], "owner": …, "public_key": …, "purpose": "moerge join", "version": 1}
    rotation      {"new_key": …, "old_key": …, "owner": …, "purpose": "moerge rotation", "version": 1}

An input is an expert or a contribution (`SignedInput`). Keys are 32, signatures 64 bytes, in lower-case hex. A
fingerprint is the SHA-256 of a public key's bytes.
"""

import base64
from datetime import datetime
from typing import Annotated, Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, JsonValue, StringConstraints

from moerge_proto.digests import Digest, Name, canonical_json, sha256_hex
from moerge_proto.messages import Message, Moment

PublicKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Signature = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
_PREFIX = "moerge-join-1."
_FORMAT = 1
_GROUP = 4


def public_key_of(key: Ed25519PrivateKey) -> PublicKey:
    return key.public_key().public_bytes_raw().hex()


def fingerprint(public_key: PublicKey) -> Digest:
    return sha256_hex(bytes.fromhex(public_key))


def in_groups(digits: str) -> str:
    """A fingerprint in groups of four digits, for people."""
    return " ".join(digits[start : start + _GROUP] for start in range(0, len(digits), _GROUP))


def is_signed(public_key: PublicKey, message: bytes, signature: Signature) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(bytes.fromhex(signature), message)
    except InvalidSignature:
        return False
    return True


class SignedInput(Message):
    """The facts of an expert or a contribution that its owner signs.

    `body`: of a router contribution, or of an expert; None of a head contribution. `digest`: of a contribution's file,
    or of the digests of an expert's files.
    """

    kind: Literal["expert", "router contribution", "head contribution"]
    owner: Name
    domain: Name
    body: Digest | None
    digest: Digest

    def message(self) -> bytes:
        """The signed bytes."""
        return _message("input", self.model_dump(mode="json"))

    def sign(self, key: Ed25519PrivateKey) -> Signature:
        return key.sign(self.message()).hex()

    def is_by(self, public_key: PublicKey | None, signature: Signature | None) -> bool:
        """Tell whether the signature is there, and by this key."""
        return public_key is not None and signature is not None and is_signed(public_key, self.message(), signature)


def _message(purpose: str, fields: dict[str, JsonValue]) -> bytes:
    return canonical_json({"purpose": f"moerge {purpose}", "version": _FORMAT, **fields})


class JoinRequest(Message):
    """Asks an operator to approve an owner of `domains` with this key, which signs it. It contains no secret."""

    owner: Name
    domains: list[Name] = Field(min_length=1, max_length=1000)
    public_key: PublicKey
    created: Moment
    signature: Signature

    @classmethod
    def make(cls, key: Ed25519PrivateKey, owner: str, domains: list[str], created: datetime) -> Self:
        fields = {"owner": owner, "domains": domains, "public_key": public_key_of(key), "created": created}
        blank = cls.model_validate({**fields, "signature": "0" * 128})
        return blank.model_copy(update={"signature": key.sign(blank.message()).hex()})

    def message(self) -> bytes:
        """The signed bytes."""
        return _message("join", self.model_dump(mode="json", exclude={"signature"}))

    def is_genuine(self) -> bool:
        """Whether its signature is by its own key."""
        return is_signed(self.public_key, self.message(), self.signature)

    def line(self) -> str:
        """As one line of text, for a mail or a chat: `moerge-join-1.` and base64url of canonical JSON."""
        content = canonical_json(self.model_dump(mode="json"))
        return _PREFIX + base64.urlsafe_b64encode(content).decode().rstrip("=")

    @classmethod
    def of_line(cls, text: str) -> Self:
        """Parses the output of `line`; raises ValueError if it is something else, or was changed in transit."""
        line = "".join(text.split())  # mail programs break lines
        if not line.startswith(_PREFIX):
            raise ValueError(f"expected a line that begins with {_PREFIX!r}, found {text[:40]!r}")
        coded = line.removeprefix(_PREFIX)
        try:
            request = cls.model_validate_json(base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)))
        except ValueError as error:
            raise ValueError("the request is damaged: it was cut or changed in transit") from error
        if request.line() != line or not request.is_genuine():
            raise ValueError("the request is not signed by its key: it was changed in transit")
        return request


class Rotation(Message):
    """Asks to replace the owner's `old_key` with `new_key`; both sign it."""

    owner: Name
    old_key: PublicKey
    new_key: PublicKey
    old_signature: Signature
    new_signature: Signature

    @classmethod
    def make(cls, old: Ed25519PrivateKey, new: Ed25519PrivateKey, owner: str) -> Self:
        keys = {"old_key": public_key_of(old), "new_key": public_key_of(new)}
        message = _message("rotation", {"owner": owner, **keys})
        signatures = {"old_signature": old.sign(message).hex(), "new_signature": new.sign(message).hex()}
        return cls(owner=owner, **keys, **signatures)

    def forged(self) -> str | None:
        """The name of a signature not made by its key, or None."""
        message = _message("rotation", {"owner": self.owner, "old_key": self.old_key, "new_key": self.new_key})
        for name in ("old", "new"):
            if not is_signed(getattr(self, f"{name}_key"), message, getattr(self, f"{name}_signature")):
                return f"{name}_signature"
        return None
