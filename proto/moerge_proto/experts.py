"""Experts: dense checkpoints, one per domain, each by one owner."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import FileEntry, Message
from moerge_proto.problems import Problem
from moerge_proto.workflows import Workflow

Vocabulary = Literal["same", "pad"]
"""Whether experts must have the same vocabulary, or one may append tokens to the other's."""


class ExpertState(StrEnum):
    """received -> ready, or refused with the reason; ready -> withdrawn."""

    RECEIVED = "received"
    READY = "ready"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


class Fitted(Message):
    """The origin of a fitted expert: the digests of the original expert and of the trunk."""

    expert: Digest
    trunk: Digest


class NewAdapter(Message):
    """A PEFT adapter: digests of its base, a registered expert, and of its uploaded weights; and its settings."""

    base: Digest
    weights: Digest
    settings: dict[str, JsonValue] = Field(max_length=100)


class NewExpert(Message):
    """Registers files as the expert of `domain`. `files` maps names in the folder to digests.

    They are uploaded before, or the coordinator fetches them from below the address `source`, which the operator must
    allow. With `adapter` it makes the weights, one file, by merging the adapter with its base: an expert of the same
    owner, or one whose owner allows its redistribution.

    With `trunk="keep"` the trunk stays, and only the new expert's owner contributes under it. With `remerge`, as soon
    as this expert is ready, the current trunk is merged again with it, by the same method; then every owner is asked.

    `redistribute`: whether owners of the other experts in a version may download it, with this expert's MLPs, to
    evaluate it. A new registration with another value changes it; an operator can't set it.

    With `fitted` it is a fitted expert: the domain's expert with MLPs that its owner solved anew for a trunk. It is
    never merged into a trunk, and is redistributed if the original expert is.
    """

    domain: Name
    files: dict[str, Digest] = Field(min_length=1, max_length=1000)
    source: str | None = Field(default=None, max_length=1000)
    license: str = Field(default="unknown", pattern=r"^[A-Za-z0-9.+-]{1,64}$")
    """An SPDX identifier, such as Apache-2.0."""
    trunk: Literal["keep", "remerge"] = "keep"
    redistribute: bool = False
    fitted: Fitted | None = None
    adapter: NewAdapter | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "NewExpert":
        if self.fitted is not None and (self.source is not None or self.trunk == "remerge"):
            raise ValueError("fitted: expected no source, and trunk 'keep'")
        if self.adapter is not None and (self.source is not None or self.fitted is not None):
            raise ValueError("adapter: expected no source, and not a fitted expert")
        return self


class Expert(Message):
    """An expert. `digest` names its files; `number` is the order of arrival; `fitted` is None for a trained expert.

    Until its files are fetched from `source` or made from `adapter`, their sizes are 0 and the family is empty.
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
    fitted: Fitted | None
    created: datetime
    withdrawn: datetime | None
    purged: datetime | None

    @property
    def trained(self) -> str:
        """The digest of the trained expert: its own, or that of the expert that it was fitted from."""
        return self.digest if self.fitted is None else self.fitted.expert


class Withdraw(Message):
    """Asks to withdraw an expert. With `serve=False`, versions that contain it are withheld from consumers at once."""

    serve: bool = True


class Withdrawal(Message):
    """The effects of an expert's withdrawal, which includes its fitted experts.

    `trunks` and `versions` still contain it. The trunks are retired. `remerge` is the workflow of the trunk that
    replaces the current one; None if that doesn't contain the expert, or nothing is left to merge. Retiring a version
    removes it.
    """

    expert: Expert
    trunks: list[Digest]
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
