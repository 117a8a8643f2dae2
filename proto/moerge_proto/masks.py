"""Masks of router contributions: sealed seeds, a keeper's request, and its answer.

A masked contribution's integers are x + the sum of a mask of each keeper, mod 2^64. A mask is the keystream of AES-256
in counter mode (SP 800-38A) under a secret seed of 32 bytes: per layer, little-endian words for the gram, then for the
cross. The first counter block is the layer's number in its upper 8 bytes.

The owner seals each keeper's seed with HPKE (RFC 9180; DHKEM X25519, HKDF-SHA256, AES-256-GCM). Its `info` has the
digest of the owner's public key and of all that the owner signs but the seals. So a copied seal opens in no other part.
A keeper's answer begins with the digests of request and keeper, its public key, 32 bytes each. Then it has the sums of
masks over all parts, per layer: the gram's, [H(H+1)/2], then the cross of each domain in order of name, [H] each, as
little-endian words.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Self

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from pydantic import Field, StringConstraints, model_validator

from moerge_proto.digests import Digest, Name, canonical_json, digest_of, sha256_hex
from moerge_proto.messages import Message
from moerge_proto.ranges import Source, opened, read_bytes
from moerge_proto.signatures import PublicKey, Signature, is_signed, public_key_of
from moerge_proto.statistics_file import (
    MAX_MASKED_HIDDEN,
    MAX_MASKED_LAYERS,
    MAX_SUMMED,
    Int64,
    RouterManifest,
    gram_length,
)

LEAST_OWNERS = 3
"""Fewest owners of a sum: of two, each would know the other's part."""
MAX_REQUEST_BYTES = 2**20
SEED_BYTES = 32
_HEAD_BYTES = 64
KeeperKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A keeper's X25519 public key, in lower-case hex."""
Sealed = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{160}$")]
"""A sealed seed: 32 bytes of encapsulated key, 32 of seed, 16 of tag."""
Words = NDArray[np.uint64]
_SUITE = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
_INFO = b"moerge mask 2 "


def new_seed() -> bytes:
    return os.urandom(SEED_BYTES)


def keeper_key(key: X25519PrivateKey) -> KeeperKey:
    return key.public_key().public_bytes_raw().hex()


def mask(seed: bytes, layer: int, length: int) -> Words:
    """The first words of a layer's mask."""
    stream = Cipher(algorithms.AES256(seed), modes.CTR(layer.to_bytes(8, "big") + bytes(8))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), dtype="<u8").astype(np.uint64, copy=False)


class Seals(Message):
    """The sealed seeds of a masked contribution, by keeper, with the owner's signature (`MaskedPart.message`).

    `owners`: fewest owners whose sum may be unmasked.
    """

    owners: int = Field(ge=LEAST_OWNERS, le=MAX_SUMMED)
    sealed: dict[KeeperKey, Sealed] = Field(min_length=1, max_length=10)
    signature: Signature


class MaskedPart(Message):
    """One contribution of a cohort, as its owner has signed it. Keepers know nothing else of it."""

    owner: Name
    domain: Name
    body: Digest
    contribution: Digest
    hidden_size: int = Field(ge=1, le=MAX_MASKED_HIDDEN)
    layers: int = Field(ge=1, le=MAX_MASKED_LAYERS)
    seals: Seals

    @classmethod
    def signed(cls, key: Ed25519PrivateKey, owners: int, seeds: Mapping[KeeperKey, bytes], **facts: object) -> Self:
        """A part whose seeds are sealed for their keepers."""
        blank = Seals(owners=owners, sealed=dict.fromkeys(seeds, "0" * 160), signature="0" * 128)
        part = cls.model_validate({**facts, "seals": blank})
        info = part._info(public_key_of(key))
        part = part._with(sealed={keeper: _sealed(seed, keeper, info) for keeper, seed in seeds.items()})
        return part._with(signature=key.sign(part.message()).hex())

    def _with(self, **seals: object) -> Self:
        return self.model_copy(update={"seals": self.seals.model_copy(update=seals)})

    def _info(self, public_key: PublicKey) -> bytes:
        """The facts that the seals are bound to."""
        fields = self.model_dump(mode="json", exclude={"seals": {"signature", "sealed"}})
        facts = {**fields, "keepers": sorted(self.seals.sealed), "public_key": public_key}
        return _INFO + bytes.fromhex(digest_of(facts))

    def message(self) -> bytes:
        """The signed bytes."""
        fields = self.model_dump(mode="json", exclude={"seals": {"signature"}})
        return canonical_json({"purpose": "moerge mask", "version": 1, **fields})

    def is_genuine(self, public_key: PublicKey) -> bool:
        return is_signed(public_key, self.message(), self.seals.signature)

    def seed(self, key: X25519PrivateKey, public_key: PublicKey) -> bytes | None:
        """The seed for a keeper; None if its owner, with this public key, sealed none for it in this part."""
        sealed = self.seals.sealed.get(keeper_key(key))
        try:
            return None if sealed is None else _SUITE.decrypt(bytes.fromhex(sealed), key, info=self._info(public_key))
        except InvalidTag:
            return None


def _sealed(seed: bytes, keeper: KeeperKey, info: bytes) -> Sealed:
    public = X25519PublicKey.from_public_bytes(bytes.fromhex(keeper))
    return _SUITE.encrypt(seed, public, info=info).hex()


def facts_of(manifest: RouterManifest) -> dict[str, object]:
    """The facts of a part that are in the manifest of its file."""
    return manifest.model_dump(include={"owner", "domain", "body", "hidden_size", "layers"})


class MasksRequest(Message):
    """Asks a keeper for the sums of the masks of a whole cohort."""

    parts: list[MaskedPart] = Field(min_length=1, max_length=MAX_SUMMED)

    @model_validator(mode="after")
    def _of_one_shape(self) -> Self:
        if len({part.contribution for part in self.parts}) < len(self.parts):
            raise ValueError("parts: expected each contribution once")
        if len({(part.body, part.hidden_size, part.layers) for part in self.parts}) > 1:
            raise ValueError("parts: expected contributions under one body")
        return self

    @property
    def digest(self) -> Digest:
        """The name of the cohort: of the set of all that its owners have signed."""
        return digest_of([*sorted(sha256_hex(part.message()) for part in self.parts)])

    @property
    def domains(self) -> list[str]:
        return sorted({part.domain for part in self.parts})

    @property
    def keepers(self) -> set[str]:
        """The public keys of all keepers."""
        return {keeper for part in self.parts for keeper in part.seals.sealed}

    @property
    def answer_bytes(self) -> int:
        return MaskSums.size_of(self.parts[0].hidden_size, self.parts[0].layers, len(self.domains))


def summed(request: MasksRequest, keeper: KeeperKey, seeds: Sequence[bytes]) -> Iterator[bytes]:
    """A keeper's answer, layer by layer; one seed for each part. Memory: three grams."""
    hidden, domains = request.parts[0].hidden_size, request.domains
    length = gram_length(hidden)
    yield bytes.fromhex(request.digest + keeper)
    for layer in range(request.parts[0].layers):
        gram, cross = np.zeros(length, dtype="<u8"), np.zeros((len(domains), hidden), dtype="<u8")
        for part, seed in zip(request.parts, seeds, strict=True):
            words = mask(seed, layer, length + hidden)
            gram += words[:length]
            cross[domains.index(part.domain)] += words[length:]
        yield gram.tobytes()
        yield cross.tobytes()


class MaskSums:
    """A keeper's answer over `domains`, one tensor in memory at a time.

    Attributes:
        request, keeper: the digest of the request, and the keeper's key, as the file says.

    Raises:
        ValueError: on opening, if its size is another.
    """

    def __init__(self, source: Source, hidden_size: int, layers: int, domains: Sequence[str]) -> None:
        self._file, self._hidden, self._domains = opened(source), hidden_size, sorted(domains)
        if self._file.size != (size := self.size_of(hidden_size, layers, len(self._domains))):
            found = self._file.size
            self._file.close()
            raise ValueError(f"expected {size} bytes, found {found}")
        head = read_bytes(self._file, 0, _HEAD_BYTES).hex()
        self.request, self.keeper = head[:_HEAD_BYTES], head[_HEAD_BYTES:]

    @staticmethod
    def size_of(hidden_size: int, layers: int, domains: int) -> int:
        return _HEAD_BYTES + 8 * layers * (gram_length(hidden_size) + domains * hidden_size)

    def gram(self, layer: int) -> Int64:
        return self._words(layer, 0, gram_length(self._hidden))

    def cross(self, layer: int, domain: str) -> Int64:
        start = gram_length(self._hidden) + self._domains.index(domain) * self._hidden
        return self._words(layer, start, self._hidden)

    def _words(self, layer: int, start: int, length: int) -> Int64:
        words: Int64 = np.empty(length, dtype="<i8")
        offset = self.size_of(self._hidden, layer, len(self._domains)) + 8 * start
        if self._file.read(offset, words.data.cast("B")) < words.nbytes:
            raise ValueError("the file was truncated")
        return words.astype(np.int64, copy=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
