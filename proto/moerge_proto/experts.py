"""Experts: dense checkpoints, one per domain, each by one owner."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import UNKNOWN, FileEntry, License, Message
from moerge_proto.problems import Problem
from moerge_proto.signatures import Signature, SignedInput
from moerge_proto.workflows import Workflow

Vocabulary = Literal["same", "pad"]
"""`pad`: one expert may append tokens to the other's vocabulary."""


class ExpertState(StrEnum):
    """received -> ready, or refused with the reason; ready -> withdrawn."""

    RECEIVED = "received"
    READY = "ready"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


class Parts(Message):
    """The origin of an expert's MLPs and head that are registered for versions under one `body`.

    `expert`: the digest of the dense expert; under a merged body a registered one. `fitted`: whether its owner solved
    the MLPs anew for the body. `own_head`: whether last norm and head are among the files; otherwise they are the
    seed's, whose body the expert keeps.
    """

    expert: Digest
    body: Digest
    fitted: bool
    own_head: bool = True


class NewAdapter(Message):
    """A PEFT adapter: digests of its base and of its uploaded weights; and its settings.

    The base is a registered expert, or of parts the seed's body.
    """

    base: Digest
    weights: Digest
    settings: dict[str, JsonValue] = Field(max_length=100)


class NewExpert(Message):
    """Registers `files`, name -> digest, as the expert of `domain`.

    They are uploaded before, or the coordinator fetches them from below the address `source`, which the operator must
    allow. With `adapter` it makes the weights, one file, by merging the adapter with its base: an expert of the same
    owner, or one whose owner allows its redistribution; of parts with the expert's own MLPs alone, the seed.
    `license`: an SPDX identifier, such as Apache-2.0.

    `body`: `keep` the current body, so that only the new expert's owner contributes, or `remerge` it with this expert
    by the same method, so that every owner contributes. `redistribute`: whether owners of the other experts in a
    version may download it, with this expert's MLPs, to evaluate it, and operators may export its inputs. A new
    registration changes it; an operator can't.
    `parts`: the files have only MLPs and perhaps last norm and head, for versions under a body. They are never merged
    into a body.
    Those of a registered expert are redistributed if that is.
    `signature`: the owner's (`signed_by`), for the provenance of versions. None from an owner without a key, or of
    files that its worker doesn't have.
    """

    domain: Name
    files: dict[str, Digest] = Field(min_length=1, max_length=1000)
    source: str | None = Field(default=None, max_length=1000)
    license: License = UNKNOWN
    body: Literal["keep", "remerge"] = "keep"
    redistribute: bool = False
    parts: Parts | None = None
    adapter: NewAdapter | None = None
    signature: Signature | None = None

    def signed_by(self, owner: str, digest: Digest) -> SignedInput:
        """The facts that its owner signs; `digest`: of all files."""
        body = None if self.parts is None else self.parts.body
        return SignedInput(kind="expert", owner=owner, domain=self.domain, body=body, digest=digest)

    @model_validator(mode="after")
    def _fits_together(self) -> "NewExpert":
        if self.parts is not None and (self.source is not None or self.body == "remerge"):
            raise ValueError("parts: expected no source, and body 'keep'")
        if self.adapter is not None and self.source is not None:
            raise ValueError("adapter: expected no source")
        adapter, parts = self.adapter, self.parts
        if adapter and parts and (parts.fitted or parts.own_head or adapter.base != parts.body):
            raise ValueError("adapter: of parts, expected the expert's own MLPs alone, and the body as base")
        return self


class Expert(Message):
    """An expert. `digest`: of its files; `number`: order of arrival; `parts`: None for a whole expert.

    Until its files are fetched from `source` or made from `adapter`, their sizes are 0 and the family is empty.
    `fingerprint`: of the key that made `signature`; None if its owner hasn't signed it.
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
    source: str | None
    adapter: NewAdapter | None
    parts: Parts | None
    created: datetime
    withdrawn: datetime | None
    purged: datetime | None
    signature: Signature | None = None
    fingerprint: Digest | None = None

    @property
    def dense(self) -> str:
        """Its digest, or that of the dense expert whose parts it has."""
        return self.digest if self.parts is None else self.parts.expert


class Withdraw(Message):
    """Withdraws an expert. With `serve=False`, versions that contain it are withheld from consumers at once."""

    serve: bool = True


class Withdrawal(Message):
    """The effects of an expert's withdrawal, which includes its parts.

    `bodies`, now retired, and `versions` still contain it. `remerge`: the workflow of the body that replaces the
    current one; None if that doesn't contain the expert, or nothing is left to merge.
    """

    expert: Expert
    bodies: list[Digest]
    versions: list[int]
    remerge: Workflow | None


class Purge(Message):
    """Asks to remove a withdrawn expert's files. `retire` also retires the versions that contain it (operator)."""

    retire: bool = False


class Purged(Message):
    """The effects of a purge: `removed` files of `bytes` in all. `versions` that contain the expert keep its files."""

    removed: int
    bytes: int
    versions: list[int]
