"""The keys that sign versions, oldest first, and the rotations from one to the next.

A rotation's signed bytes are the canonical JSON (RFC 8785) of one object; both keys sign it:

    {"new_key": …, "old_key": …, "purpose": "moerge version key rotation", "version": 1}

Keys are ECDSA keys on P-256 in PEM, signatures ECDSA with SHA-256 in base64.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from pydantic import AfterValidator, Base64Bytes, Field, StringConstraints

from moerge_proto.digests import Digest, canonical_json
from moerge_proto.messages import Message
from moerge_proto.version_signatures import fingerprint, loaded_key, public_pem

_ALGORITHM = ECDSA(hashes.SHA256())
_LONGEST_KEY, _LONGEST_SIGNATURE = 1000, 2**20


def _usual(public_key: str) -> str:
    loaded_key(public_key)
    return public_key


PublicPem = Annotated[str, StringConstraints(max_length=_LONGEST_KEY), AfterValidator(_usual)]
"""A public key on P-256, in the PEM that fingerprints are made of."""
Signature = Annotated[Base64Bytes, Field(max_length=200)]


class KeyRotation(Message):
    """Replaces `old_key` with `new_key`; both sign it."""

    old_key: PublicPem
    new_key: PublicPem
    old_signature: Signature
    new_signature: Signature

    @classmethod
    def make(cls, old: EllipticCurvePrivateKey, new: EllipticCurvePrivateKey) -> Self:
        old_key, new_key = public_pem(old), public_pem(new)
        message = _message(old_key, new_key)
        old_signature, new_signature = (key.sign(message, _ALGORITHM) for key in (old, new))
        return cls.model_construct(
            old_key=old_key, new_key=new_key, old_signature=old_signature, new_signature=new_signature
        )

    def forged(self) -> str | None:
        """The name of a signature not made by its key, or None."""
        message = _message(self.old_key, self.new_key)
        for name in ("old", "new"):
            try:
                loaded_key(getattr(self, f"{name}_key")).verify(getattr(self, f"{name}_signature"), message, _ALGORITHM)
            except InvalidSignature:
                return f"{name}_signature"
        return None


def _message(old_key: str, new_key: str) -> bytes:
    return canonical_json(
        {"purpose": "moerge version key rotation", "version": 1, "old_key": old_key, "new_key": new_key}
    )


class VersionKey(Message):
    """A key that signs or signed versions. The last one is active unless it is revoked.

    `rotation`: with which the earlier key's holder named this one; None if the operator did. `revoked`: since when no
    signature of it is to be trusted. A key that was rotated is not revoked: its signatures stay valid.
    """

    number: int
    public_key: PublicPem
    fingerprint: Digest
    rotation: KeyRotation | None
    created: datetime
    revoked: datetime | None


class NewSignature(Message):
    """The content of `model.sig` for a version, with its present model card, and of `provenance.sigstore.json`."""

    signature: str = Field(max_length=_LONGEST_SIGNATURE)
    provenance: str = Field(max_length=_LONGEST_SIGNATURE)


def successors(keys: Sequence[VersionKey], pinned: Digest) -> list[Digest]:
    """The fingerprints to which signed rotations lead from `pinned`, a fingerprint, which is the first of them.

    A revoked key's rotation is not followed: whoever stole the key could have made it. Only the revocations are the
    coordinator's word.
    """
    revoked, found = {key.fingerprint for key in keys if key.revoked is not None}, [pinned]
    for key in keys:
        rotation = key.rotation
        if rotation is None or fingerprint(rotation.old_key) != found[-1] or found[-1] in revoked:
            continue
        if rotation.forged() is None:
            found.append(fingerprint(rotation.new_key))
    return found
