"""Signatures of versions, as the specification OpenSSF Model Signing 1.0 has them (github.com/ossf/model-signing-spec).

`model.sig` is a Sigstore bundle v0.3: a DSSE envelope, by an ECDSA key on P-256, around an in-toto statement with the
name and SHA-256 of every file. The predicate's `moerge`, which other verifiers skip, has the version's number, of a
part its set of experts, the release that published it, the digest of its provenance's statement, and the public key. A
fingerprint is the SHA-256 of the key's PEM, as `sha256sum` prints it.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from moerge_proto.digests import Digest, canonical_json, sha256_hex
from moerge_proto.messages import Message
from moerge_proto.version_names import PartDigest, version_name

SIGNATURE_FILE, PROVENANCE_FILE = "model.sig", "provenance.sigstore.json"
TOOLS = ".cache", ".eval_results", ".git", ".gitattributes", ".github", ".gitignore"
"""Names of other tools in a version's folder, which its signature doesn't cover."""
UNSIGNED = (*TOOLS, SIGNATURE_FILE, PROVENANCE_FILE)
"""Names in a version's folder that its signature doesn't cover. Nothing reads them when it loads the model."""
_BUNDLE: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD: Literal["application/vnd.in-toto+json"] = "application/vnd.in-toto+json"
_STATEMENT: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
_PREDICATE: Literal["https://model_signing/signature/v1.0"] = "https://model_signing/signature/v1.0"
ALGORITHM = ECDSA(hashes.SHA256())


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class _Signature(_Part):
    sig: Base64Bytes
    keyid: Literal[""] = ""


class _Envelope(_Part):
    payload: Base64Bytes
    payload_type: Literal["application/vnd.in-toto+json"] = _PAYLOAD
    signatures: Annotated[list[_Signature], Field(min_length=1, max_length=1)]


class _PublicKey(_Part):
    hint: Digest


class _Material(_Part):
    public_key: _PublicKey
    tlog_entries: Annotated[list[str], Field(max_length=0)] = []


class _Bundle(_Part):
    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = _BUNDLE
    verification_material: _Material
    dsse_envelope: _Envelope

    def require_key(self, public_key: str) -> None:
        """Requires that the key of this PEM has signed the payload; ValueError otherwise."""
        if self.verification_material.public_key.hint != fingerprint(public_key):
            raise ValueError("the signature names another key")
        [signature] = self.dsse_envelope.signatures
        try:
            loaded_key(public_key).verify(signature.sig, signed_bytes(self.dsse_envelope.payload), ALGORITHM)
        except InvalidSignature as error:
            raise ValueError("the signature is not by its key: it was changed") from error


class _Resource(Message):
    name: str
    algorithm: Literal["sha256"] = "sha256"
    digest: Digest


class _Serialization(Message):
    method: Literal["files"] = "files"
    hash_type: Literal["sha256"] = "sha256"
    allow_symlinks: Literal[False] = False
    ignore_paths: list[str]


class _Facts(Message):
    version: int = Field(ge=1)
    part: PartDigest | None = Field(default=None, exclude_if=lambda value: value is None)
    release: str
    provenance: Digest
    public_key: str


class _Predicate(Message):
    serialization: _Serialization
    resources: list[_Resource]
    moerge: _Facts


class _Digests(Message):
    sha256: Digest


class _Subject(Message):
    name: str
    digest: _Digests


class _Statement(Message):
    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[list[_Subject], Field(min_length=1, max_length=1)]
    predicate_type: Literal["https://model_signing/signature/v1.0"] = Field(alias="predicateType")
    predicate: _Predicate


@dataclass(frozen=True)
class SignedVersion:
    """The signed facts of a version.

    Attributes:
        release: of moerge, which published it.
        files: name -> SHA-256 of every file, the card included.
        provenance: SHA-256 of its provenance's statement.
        public_key: PEM of the key that signed it.
        part: of a part of version `number`, the digest of its set of experts.
    """

    number: int
    release: str
    files: Mapping[str, Digest]
    provenance: Digest
    public_key: str
    part: str | None = None

    @property
    def name(self) -> str:
        return version_name(self.number, self.part)

    @property
    def fingerprint(self) -> Digest:
        return fingerprint(self.public_key)

    @classmethod
    def of(cls, text: str | bytes) -> Self:
        """Parses and verifies a bundle; whether its key is the expected one is the caller's question.

        Raises:
            ValueError: it is no signature of a version, or was changed.
        """
        try:
            bundle = _Bundle.model_validate_json(text)
            predicate = (statement := _Statement.model_validate_json(bundle.dsse_envelope.payload)).predicate
        except ValidationError as error:
            raise ValueError("not the signature of a version by this build of moerge") from error
        bundle.require_key(key := predicate.moerge.public_key)
        files = {resource.name: resource.digest for resource in predicate.resources}
        if statement.subject[0].digest.sha256 != _root(files) or len(files) != len(predicate.resources):
            raise ValueError("the signature contradicts itself")
        facts = predicate.moerge
        return cls(facts.version, facts.release, files, facts.provenance, key, facts.part)


def sign_version(
    key: EllipticCurvePrivateKey,
    number: int,
    release: str,
    files: Mapping[str, Digest],
    provenance: Digest,
    part: str | None = None,
) -> str:
    """The content of `model.sig` for a version's files, name -> SHA-256. ECDSA is randomised: each call gives another.

    `provenance` is the SHA-256 of the statement in `provenance.sigstore.json`; `part`: as in `SignedVersion`.

    The fields are those that `model-signing` 1.1.1 writes (its `Payload` and `sign_ec_key.Signer`).
    """
    public_key = public_pem(key)
    files = dict(sorted(files.items()))
    statement = _Statement(
        _type=_STATEMENT,
        predicateType=_PREDICATE,
        subject=[_Subject(name=f"version-{version_name(number, part)}", digest=_Digests(sha256=_root(files)))],
        predicate=_Predicate(
            serialization=_Serialization(ignore_paths=list(UNSIGNED)),
            resources=[_Resource(name=name, digest=digest) for name, digest in files.items()],
            moerge=_Facts(version=number, part=part, release=release, provenance=provenance, public_key=public_key),
        ),
    )
    return signed_bundle(key, canonical_json(statement.model_dump(mode="json", by_alias=True)))


def signed_bundle(key: EllipticCurvePrivateKey, statement: bytes) -> str:
    """A Sigstore bundle with an in-toto statement, signed by this key."""
    signature = key.sign(signed_bytes(statement), ALGORITHM)
    bundle = {
        "mediaType": _BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": fingerprint(public_pem(key))}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(statement).decode(),
            "payloadType": _PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return canonical_json(bundle).decode() + "\n"  # type: ignore[arg-type]  # JSON


def signed_statement(bundle: str | bytes, public_key: str) -> bytes:
    """The statement in a bundle that the key of this PEM has signed.

    Raises:
        ValueError: it is no such bundle, or was changed, or another key signed it.
    """
    try:
        parsed = _Bundle.model_validate_json(bundle)
    except ValidationError as error:
        raise ValueError("not a signed statement") from error
    parsed.require_key(public_key)
    return parsed.dsse_envelope.payload


def public_pem(key: EllipticCurvePrivateKey) -> str:
    return _pem(key.public_key())


def fingerprint(public_key: str) -> Digest:
    return sha256_hex(public_key.encode())


def loaded_key(public_key: str) -> EllipticCurvePublicKey:
    """The public key of a PEM; ValueError: it is none on P-256, or not in the form that fingerprints are made of."""
    try:
        key = load_pem_public_key(public_key.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("not a public key in PEM") from error
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise ValueError("not a public key on the curve P-256")
    if _pem(key) != public_key:
        raise ValueError("the PEM is not in its usual form")
    return key


def _pem(key: EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def signed_bytes(payload: bytes, kind: str = _PAYLOAD) -> bytes:
    """The pre-authentication encoding of DSSE v1."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)


def _root(files: Mapping[str, Digest]) -> Digest:
    """The digest of all digests, in the order of the resources."""
    root = hashlib.sha256()
    for digest in files.values():
        root.update(bytes.fromhex(digest))
    return root.hexdigest()
