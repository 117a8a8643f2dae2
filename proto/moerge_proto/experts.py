"""Experts: dense checkpoints, one per domain, each by one owner."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import UNKNOWN, FileEntry, License, Message
from moerge_proto.problems import Problem
from moerge_proto.signatures import Signature, SignedInput

Vocabulary = Literal["same", "pad"]
"""`pad`: one expert may append tokens to the other's vocabulary."""


class ExpertState(StrEnum):
    """received -> ready, or refused with the reason; ready -> withdrawn."""

    RECEIVED = "received"
    READY = "ready"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


class Parts(Message):
    """The origin of an expert's MLPs and head that are registered for versions under the body of a seed.

    Attributes:
        expert: the digest of the dense expert, which stays with its owner.
        body: the digest of the seed's body.
        fitted: whether its owner solved the MLPs anew for the body.
        own_head: whether last norm and head are among the files; otherwise they are the seed's, whose body the expert
            keeps.
    """

    expert: Digest
    body: Digest
    fitted: bool
    own_head: bool = True


class NewAdapter(Message):
    """A PEFT adapter of the seed.

    Attributes:
        base: the digest of the seed's body.
        weights: the digest of the adapter's uploaded weights.
        settings: those of adapter_config.json.
    """

    base: Digest
    weights: Digest
    settings: dict[str, JsonValue] = Field(max_length=100)


class NewExpert(Message):
    """Registers uploaded files as the expert of a domain.

    Attributes:
        files: name -> digest. They have only MLPs and perhaps last norm and head.
        license: an SPDX identifier, such as Apache-2.0.
        redistribute: whether owners of the other experts in a version may download it, with this expert's MLPs, to
            evaluate it, and operators may export its inputs. A new registration changes it.
        parts: of a dense expert, for versions under a seed's body.
        adapter: with it, the coordinator makes the weights, one file, by merging the adapter with the seed.
        signature: the owner's (`signed_by`), for the provenance of versions. None from an owner without a key.
    """

    domain: Name
    files: dict[str, Digest] = Field(min_length=1, max_length=1000)
    license: License = UNKNOWN
    redistribute: bool = False
    parts: Parts
    adapter: NewAdapter | None = None
    signature: Signature | None = None

    def signed_by(self, owner: str, digest: Digest) -> SignedInput:
        """The facts that its owner signs; `digest`: of all files."""
        return SignedInput(kind="expert", owner=owner, domain=self.domain, body=self.parts.body, digest=digest)

    @model_validator(mode="after")
    def _fits_together(self) -> "NewExpert":
        adapter, parts = self.adapter, self.parts
        if adapter is not None and (parts.fitted or parts.own_head or adapter.base != parts.body):
            raise ValueError("adapter: expected the expert's own MLPs alone, and the body as base")
        return self


class Expert(Message):
    """An expert.

    Attributes:
        number: order of arrival.
        digest: of its files.
        license: an SPDX identifier.
        family: its architecture; empty until its files are made from `adapter`.
        problem: the reason if it was refused.
        files: their sizes are 0 until they are made from `adapter`.
        purged: since when it has no files.
        fingerprint: of the key that made `signature`; None if its owner hasn't signed it.
    """

    number: int
    digest: Digest
    domain: str
    owner: str
    license: str
    redistribute: bool
    family: str
    state: ExpertState
    problem: Problem | None
    files: list[FileEntry]
    adapter: NewAdapter | None
    parts: Parts
    created: datetime
    withdrawn: datetime | None
    purged: datetime | None
    signature: Signature | None = None
    fingerprint: Digest | None = None


class Withdraw(Message):
    """Withdraws an expert. With `serve=False`, versions that contain it are withheld from consumers at once."""

    serve: bool = True


class Withdrawal(Message):
    """The effects of an expert's withdrawal: `versions` still contain it."""

    expert: Expert
    versions: list[int]


class Purge(Message):
    """Asks to remove a withdrawn expert's files. `retire` also retires the versions that contain it (operator)."""

    retire: bool = False


class Purged(Message):
    """The effects of a purge: `removed` files of `bytes` in all. `versions` that contain the expert keep its files."""

    removed: int
    bytes: int
    versions: list[int]
