"""Contributions as the coordinator records them; their content is the statistics file."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from moerge_proto.digests import Digest
from moerge_proto.masks import Seals
from moerge_proto.messages import Message
from moerge_proto.signatures import PublicKey, Signature, SignedInput
from moerge_proto.statistics_file import Manifest, RouterManifest, Split

Kind = Literal["router", "head"]
Short = Annotated[str, StringConstraints(max_length=200)]


class Submission(Message):
    """Submits an uploaded statistics file. `software`: the builds that made it.

    `supersedes`: earlier contributions that this one replaces, atomically; it may claim their shards again.
    `signature`: the owner's (`signed_contribution`); None from an owner without a key. `masks`: the
    sealed seeds of a masked one.
    """

    supersedes: list[Digest] = Field(default_factory=list, max_length=10_000)
    signature: Signature | None = None
    masks: Seals | None = None
    software: dict[Short, Short] = Field(default_factory=dict, max_length=100)


class NewContribution(Submission):
    sha256: Digest


class Contribution(Message):
    """An accepted contribution. `active` is false after it was superseded or withdrawn.

    A router contribution belongs to one `body`. A head contribution serves every head with its expert, and has no
    `split`, `body` and `shards`.

    Attributes:
        number: order of arrival.
        digest: of its statistics file.
        expert: the digest of its expert.
        tokens: their number, as that of documents and shards.
        effective_rank: median of its grams' trace^2 / sum of squared entries.
        size: of its file, in bytes.
        software: program -> release, of the worker that made it.
        fingerprint: of the key that made `signature`; both are None if its owner had no key.
        cohort: of masked ones, which count together or not at all, once their sum is known.
    """

    number: int
    digest: Digest
    kind: Kind
    split: Split | None
    owner: str
    domain: str
    expert: Digest
    body: Digest | None
    tokens: int
    documents: int
    shards: int | None
    effective_rank: float | None
    size: int
    active: bool
    warnings: list[str]
    software: dict[str, str]
    signature: Signature | None
    fingerprint: Digest | None
    created: datetime
    withdrawn: datetime | None
    cohort: int | None = None


def signed_contribution(manifest: Manifest, digest: Digest) -> SignedInput:
    """The facts of a contribution that its owner signs; `digest`: of its file."""
    body = manifest.body if isinstance(manifest, RouterManifest) else None
    return _signed(manifest.kind, owner=manifest.owner, domain=manifest.domain, body=body, digest=digest)


def _signed(kind: str, **facts: str | None) -> SignedInput:
    return SignedInput.model_validate({**facts, "kind": f"{kind} contribution"})


class ContributionSignature(Message):
    """The signature of a contribution in a version's lineage. Key and signature are None if the owner had no key.

    Only the owner can confirm that `public_key` is theirs: compare fingerprints.
    """

    kind: Kind
    digest: Digest
    owner: str
    domain: str
    body: Digest | None = None
    public_key: PublicKey | None
    signature: Signature | None

    def is_genuine(self) -> bool:
        """Tell whether the signature is by `public_key`, over these facts."""
        if self.signature is None:
            return False
        signed = _signed(self.kind, owner=self.owner, domain=self.domain, body=self.body, digest=self.digest)
        return signed.is_by(self.public_key, self.signature)
